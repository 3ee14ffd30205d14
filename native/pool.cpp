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
    // All is done, but other threads may still be on their way through; those that have not begun need not.
    int64_t entered;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      active_ = 0;
      entered = entered_;
    }
    left_milestone_.wait_for(entered);
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
        if (id >= active_) continue;  // a job for fewer threads than the pool has, or one that is over
        ++entered_;
        job = job_;
        team = team_;
      }
      work(*job, *team, id);
      left_milestone_.reach(left_.fetch_add(1) + 1);
    }
  }

  std::mutex turn_, mutex_;
  std::vector<std::thread> workers_;
  Milestone started_, left_milestone_;
  int64_t jobs_ = 0;  // guarded by mutex_; written only in turn
  int64_t entered_ = 0;  // times that a thread began its part of a job
  std::atomic<int64_t> left_{0};  // times that a thread was through with it
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

int64_t Worker::claim(int64_t units, int* victim, int* tried) {
  for (; *tried < team_.threads_; ++*tried, *victim = *victim + 1 == team_.threads_ ? 0 : *victim + 1) {
    const int64_t begin = bound(units, *victim), part = bound(units, *victim + 1) - begin;
    std::atomic<uint64_t>& cursor = team_.cursors_[static_cast<size_t>(*victim)].claimed;
    uint64_t seen = cursor.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t phase = seen >> 32;
      if (phase > phase_) break;  // this phase went by
      const int64_t claimed = phase == phase_ ? static_cast<int64_t>(seen & 0xffffffffu) : 0;
      if (claimed >= part) break;
      if (cursor.compare_exchange_weak(seen, (phase_ << 32) | static_cast<uint64_t>(claimed + 1),
                                       std::memory_order_relaxed))
        return begin + claimed;
    }
  }
  return -1;
}

void Worker::finish(int64_t done) {
  if (done > 0 && team_.completed_.fetch_add(done, std::memory_order_acq_rel) + done == target_)
    team_.reached_.reach(target_);
  else
    team_.reached_.wait_for(target_);
}

void run_team(int threads, const std::function<void(Worker&)>& job) { pool().run(threads, job); }

}  // namespace pilotfish
