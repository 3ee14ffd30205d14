#include "cpu.h"

#include <sched.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "packing.h"
#include "pool.h"

namespace pilotfish {
namespace {

std::vector<const KernelTable*> usable_kernels() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    if (__builtin_cpu_supports("avx512bf16")) tables.push_back(&avx512bf16_kernels());
    tables.push_back(&avx512_kernels());
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    tables.push_back(&avx2_kernels());
#elif defined(__aarch64__)
  tables.push_back(&neon_kernels());
#endif
  tables.push_back(&portable_kernels());
  return tables;
}

std::atomic<const KernelTable*>& selected() {
  static std::atomic<const KernelTable*> table{usable_kernels().front()};
  return table;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Processors granted by a cgroup's quota, or 0 where there is no limit.
int quota_in(const std::string& directory, bool version2) {
  double quota = 0, period = 0;
  if (version2) {
    std::istringstream line(first_line(directory + "/cpu.max"));
    if (!(line >> quota >> period)) return 0;  // "max" is not a number
  } else {
    std::istringstream a(first_line(directory + "/cpu.cfs_quota_us")), b(first_line(directory + "/cpu.cfs_period_us"));
    if (!(a >> quota) || !(b >> period) || quota <= 0) return 0;
  }
  return period > 0 ? std::max(1, static_cast<int>(std::ceil(quota / period))) : 0;
}

int cgroup_quota() {
  int least = 0;
  const auto consider = [&](int processors) {
    if (processors > 0 && (least == 0 || processors < least)) least = processors;
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && controllers.find("cpu") == std::string::npos) continue;
    const std::string root = version2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controllers;
    // A limit of any group above holds too.
    for (std::string path = line.substr(second + 1); !path.empty() && path != "/";
         path.erase(path.find_last_of('/')))
      consider(quota_in(root + path, version2));
    consider(quota_in(root, version2));
  }
  return least;
}

}  // namespace

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const KernelTable* table : usable_kernels()) names.emplace_back(table->name);
  return names;
}

const KernelTable& kernels() { return *selected().load(std::memory_order_relaxed); }

bool select_instruction_set(const std::string& name) {
  for (const KernelTable* table : usable_kernels()) {
    if (name == table->name || name == "auto") {
      selected().store(table);
      return true;
    }
  }
  return false;
}

std::vector<std::string> processor_features() {
  std::vector<std::string> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
#define PF_FEATURE(name) \
  if (__builtin_cpu_supports(name)) found.emplace_back(name)
  PF_FEATURE("avx");
  PF_FEATURE("avx2");
  PF_FEATURE("fma");
  PF_FEATURE("f16c");
  PF_FEATURE("avx512f");
  PF_FEATURE("avx512bw");
  PF_FEATURE("avx512dq");
  PF_FEATURE("avx512vl");
  PF_FEATURE("avx512vnni");
  PF_FEATURE("avx512bf16");
#undef PF_FEATURE
#elif defined(__aarch64__)
  found.emplace_back("neon");
#endif
  return found;
}

int available_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int count = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
      const std::string core = first_line(topology + "core_id");
      // Siblings of one core share its arithmetic units; where the topology is unknown each processor counts.
      cores.insert(core.empty() ? "cpu" + std::to_string(cpu)
                                : first_line(topology + "physical_package_id") + ":" + core);
    }
    count = static_cast<int>(cores.size());
  }
  const int quota = cgroup_quota();
  if (quota > 0 && quota < count) count = quota;
  return std::max(count, 1);
}

double measure_bandwidth(int threads) {
  constexpr int64_t kBytes = int64_t{256} << 20;  // beyond any cache
  const Memory memory(kBytes);
  std::memset(memory.data(), 0, kBytes);
  const int64_t pieces = 16 * threads;
  std::vector<float> sinks(static_cast<size_t>(pieces));
  double best = 0;
  for (int attempt = 0; attempt < 7; ++attempt) {
    const auto begin = std::chrono::steady_clock::now();
    run_team(threads, [&](Worker& worker) {
      worker.share(pieces, [&](int64_t piece, int64_t) {
        const int64_t from = kBytes / 256 * piece / pieces * 256, to = kBytes / 256 * (piece + 1) / pieces * 256;
        sinks[static_cast<size_t>(piece)] = kernels().read_burst(memory.data() + from, to - from);
      });
    });
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    best = std::max(best, kBytes / taken.count());
  }
  return best;
}

double measure_flops(int threads, bool pairs) {
  const auto burst = pairs ? kernels().multiply_pairs_burst : kernels().multiply_add_burst;
  double best = 0;
  for (int attempt = 0; attempt < 7; ++attempt) {
    const int64_t pieces = 16 * threads;
    std::vector<double> done(static_cast<size_t>(pieces));
    const auto begin = std::chrono::steady_clock::now();
    run_team(threads, [&](Worker& worker) {
      worker.share(pieces, [&](int64_t piece, int64_t) {
        float sink[3] = {0.999f, 0.001f, 0.0f};
        done[static_cast<size_t>(piece)] = burst(100000, sink);
      });
    });
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    double total = 0;
    for (double each : done) total += each;
    best = std::max(best, total / taken.count());
  }
  return best;
}

void release_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace pilotfish
