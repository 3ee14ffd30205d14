#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pilotfish {
namespace {

constexpr int kBarrierSpins = 4000;   // some tens of microseconds, then the processor is offered to others
constexpr int kIdleSpins = 3000;      // between passes, before a thread parks

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
      workers_.emplace_back([this, id, seen = generation_.load()] { serve(id, seen); });
    }
    Team team(threads);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      team_ = &team;
      active_ = threads;
      running_.store(threads - 1, std::memory_order_relaxed);
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (parked_.load() > 0) wake_.notify_all();
    work(job, team, 0);
    for (int spins = 0; running_.load(std::memory_order_acquire) > 0; ++spins) {
      pause();
      if (spins > kBarrierSpins) sched_yield();
    }
  }

 private:
  static void work(const std::function<void(Worker&)>& job, Team& team, int id) {
    FloatMode mode;
    Worker worker(team, id);
    job(worker);
  }

  void serve(int id, int64_t seen) {
    for (;;) {
      for (int spins = 0; generation_.load(std::memory_order_acquire) == seen && spins < kIdleSpins; ++spins) pause();
      const std::function<void(Worker&)>* job;
      Team* team;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (generation_.load() == seen) {
          parked_.fetch_add(1);
          wake_.wait(lock, [&] { return generation_.load() != seen; });
          parked_.fetch_sub(1);
        }
        seen = generation_.load();
        job = job_;
        team = team_;
        if (id >= active_) continue;  // a pass with fewer threads than the pool has; its team may be gone by now
      }
      work(*job, *team, id);
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
  std::atomic<int64_t> generation_{0};
  std::atomic<int> running_{0}, parked_{0};
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

Team::Team(int threads) : threads_(threads), cursors_(static_cast<size_t>(2 * threads)) {}

void Worker::meet() {
  ++phase_;
  if (team_.threads_ == 1) return;
  if (team_.arrived_.fetch_add(1, std::memory_order_acq_rel) == team_.threads_ - 1) {
    team_.arrived_.store(0, std::memory_order_relaxed);
    team_.phase_.store(phase_, std::memory_order_release);
    return;
  }
  for (int spins = 0; team_.phase_.load(std::memory_order_acquire) < phase_; ++spins) {
    pause();
    if (spins > kBarrierSpins) sched_yield();
  }
}

void run_team(int threads, const std::function<void(Worker&)>& job) { pool().run(threads, job); }

}  // namespace pilotfish
