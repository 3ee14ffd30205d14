// Threads of our own: they spin briefly between passes and then park, so they do not fight other libraries' threads.
//
// One pool serves the whole process; passes of different executors take turns. A child made by fork starts with a fresh
// pool, since threads do not survive a fork.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace pilotfish {

// A number that threads wait on until it has grown: they spin for a while, then sleep. A sleeper leaves its processor
// to the thread it waits for, which matters as soon as other processes want processors too.
class Milestone {
 public:
  void reach(int64_t value);
  void wait_for(int64_t value);

 private:
  alignas(128) std::atomic<int64_t> value_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable reached_;
};

// The threads of one pass. Work is handed out by `share`; all meet at its end.
class Team {
 public:
  explicit Team(int threads);
  int threads() const { return threads_; }

 private:
  friend class Worker;
  struct alignas(128) Cursor {
    std::atomic<int64_t> next{0};
  };
  int threads_;
  std::vector<Cursor> cursors_;  // [2][thread], used in turns
  alignas(128) std::atomic<int> arrived_{0};
  Milestone phase_;
};

class Worker {
 public:
  Worker(Team& team, int id) : team_(team), id_(id) {}
  int id() const { return id_; }

  // The first unit of this thread when `units` are shared, to prepare for it; -1 if it has none.
  int64_t first_of(int64_t units) const {
    const int64_t begin = bound(units, id_), end = bound(units, id_ + 1);
    return begin < end ? begin : -1;
  }

  // Runs body(unit, next unit or -1) over all units. Each thread begins with a contiguous part and, once through, helps
  // the others. Every thread of the team must make the same calls in the same order.
  template <class Body>
  void share(int64_t units, Body&& body) {
    Team::Cursor* current = team_.cursors_.data() + (phase_ & 1) * team_.threads_;
    team_.cursors_[static_cast<size_t>(((phase_ + 1) & 1) * team_.threads_ + id_)].next.store(
        0, std::memory_order_relaxed);
    int victim = id_, tried = 0;
    const auto claim = [&]() -> int64_t {
      while (tried < team_.threads_) {
        const int64_t begin = bound(units, victim), end = bound(units, victim + 1);
        if (begin < end && current[victim].next.load(std::memory_order_relaxed) < end - begin) {
          const int64_t taken = begin + current[victim].next.fetch_add(1, std::memory_order_relaxed);
          if (taken < end) return taken;
        }
        victim = victim + 1 == team_.threads_ ? 0 : victim + 1;
        ++tried;
      }
      return -1;
    };
    for (int64_t unit = claim(); unit >= 0;) {
      const int64_t next = claim();
      body(unit, next);
      unit = next;
    }
    meet();
  }

 private:
  int64_t bound(int64_t units, int thread) const { return units * thread / team_.threads_; }
  void meet();

  Team& team_;
  int id_;
  int64_t phase_ = 0;
};

// Runs job(worker) on `threads` threads, the caller among them, and returns when all are done. The job must not throw.
void run_team(int threads, const std::function<void(Worker&)>& job);

}  // namespace pilotfish
