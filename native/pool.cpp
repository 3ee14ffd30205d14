#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pilotfish {
namespace {

constexpr int kMostSpins = 3000, kFewestSpins = 30;  // before a thread sleeps; the most are some tens of microseconds

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Rounding to nearest and subnormal numbers on, whatever the calling thread was set to, for the time of a job.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatMode() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~FloatMode() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  uint64_t before_;
#endif
};

class Pool {
 public:
  void run(int threads, const std::function<void(Worker&)>& job) {
    std::lock_guard<std::mutex> turn(turn_);
    while (static_cast<int>(workers_.size()) < threads - 1) {
      const int id = static_cast<int>(workers_.size()) + 1;
      workers_.emplace_back([this, id, seen = jobs_] { serve(id, seen); });
    }
    Team team(threads);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      team_ = &team;
      active_ = threads;
      ++jobs_;
    }
    started_.reach(jobs_);
    work(job, team, 0);
    // The team's last meeting is behind us, but the other threads may still be on their way out of it.
    left_wanted_ += threads - 1;
    done_.wait_for(left_wanted_);
  }

 private:
  static void work(const std::function<void(Worker&)>& job, Team& team, int id) {
    FloatMode mode;
    Worker worker(team, id);
    job(worker);
  }

  void serve(int id, int64_t seen) {
    for (;;) {
      started_.wait_for(seen + 1);
      const std::function<void(Worker&)>* job;
      Team* team;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        seen = jobs_;
        if (id >= active_) continue;  // a job for fewer threads than the pool has; its team may be gone by now
        job = job_;
        team = team_;
      }
      work(*job, *team, id);
      done_.reach(left_.fetch_add(1) + 1);
    }
  }

  std::mutex turn_, mutex_;
  std::vector<std::thread> workers_;
  Milestone started_, done_;
  int64_t jobs_ = 0;  // guarded by mutex_; written only in turn
  int64_t left_wanted_ = 0;
  std::atomic<int64_t> left_{0};
  const std::function<void(Worker&)>* job_ = nullptr;
  Team* team_ = nullptr;
  int active_ = 0;
};

// Never destroyed: its threads may outlive static destruction. A fork leaves the parent's pool behind in the child.
std::atomic<Pool*> process_pool{nullptr};

Pool& pool() {
  Pool* existing = process_pool.load(std::memory_order_acquire);
  if (existing) return *existing;
  static std::once_flag registered;
  std::call_once(registered, [] { pthread_atfork(nullptr, nullptr, [] { process_pool.store(nullptr); }); });
  Pool* fresh = new Pool;
  if (process_pool.compare_exchange_strong(existing, fresh)) return *fresh;
  delete fresh;
  return *existing;
}

}  // namespace

// Two threads may reach neighbouring values at once; the higher one stays.
void Milestone::reach(int64_t value) {
  int64_t before = value_.load(std::memory_order_relaxed);
  while (before < value && !value_.compare_exchange_weak(before, value)) {
  }
  if (sleepers_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    reached_.notify_all();
  }
}

void Milestone::wait_for(int64_t value) {
  // Where spinning has been in vain, because there are more threads than processors for them, spin less.
  static std::atomic<int> patience{kMostSpins};
  const int most = patience.load(std::memory_order_relaxed);
  for (int spins = 0; spins < most; ++spins) {
    if (value_.load(std::memory_order_acquire) >= value) {
      if (most < kMostSpins) patience.store(std::min(kMostSpins, most + most / 8 + 1), std::memory_order_relaxed);
      return;
    }
    pause();
  }
  patience.store(std::max(kFewestSpins, most - most / 4), std::memory_order_relaxed);
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1);
  reached_.wait(lock, [&] { return value_.load() >= value; });
  sleepers_.fetch_sub(1);
}

Team::Team(int threads) : threads_(threads), cursors_(static_cast<size_t>(2 * threads)) {}

void Worker::meet() {
  ++phase_;
  if (team_.threads_ == 1) return;
  if (team_.arrived_.fetch_add(1, std::memory_order_acq_rel) == team_.threads_ - 1) {
    team_.arrived_.store(0, std::memory_order_relaxed);
    team_.phase_.reach(phase_);
    return;
  }
  team_.phase_.wait_for(phase_);
}

void run_team(int threads, const std::function<void(Worker&)>& job) { pool().run(threads, job); }

}  // namespace pilotfish
