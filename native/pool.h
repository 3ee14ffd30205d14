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

// The threads of one pass. Work is handed out by `share`, in phases: a phase begins when every unit of the one before is
// done. It does not begin when every thread has arrived: a thread that the system keeps from running holds nobody up
// unless it stopped in the middle of a unit, and catches up by passing over the phases that went by.
class Team {
 public:
  explicit Team(int threads) : threads_(threads), cursors_(static_cast<size_t>(threads)) {}
  int threads() const { return threads_; }

 private:
  friend class Worker;
  // How many units of a thread's part were claimed, below the number of the phase they belong to.
  struct alignas(128) Cursor {
    std::atomic<uint64_t> claimed{0};
  };
  int threads_;
  std::vector<Cursor> cursors_;
  alignas(128) std::atomic<int64_t> completed_{0};  // units of all phases
  Milestone reached_;
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
    ++phase_;
    target_ += units;
    int victim = id_, tried = 0;
    int64_t done = 0;
    for (int64_t unit = claim(units, &victim, &tried); unit >= 0;) {
      const int64_t next = claim(units, &victim, &tried);
      body(unit, next);
      ++done;
      unit = next;
    }
    finish(done);
  }

 private:
  int64_t bound(int64_t units, int thread) const { return units * thread / team_.threads_; }
  int64_t claim(int64_t units, int* victim, int* tried);
  void finish(int64_t done);

  Team& team_;
  int id_;
  uint64_t phase_ = 0;
  int64_t target_ = 0;  // units completed once this phase is
};

// Runs job(worker) on `threads` threads, the caller among them, and returns when all are done. The job must not throw.
void run_team(int threads, const std::function<void(Worker&)>& job);

}  // namespace pilotfish
