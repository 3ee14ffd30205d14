// What the machine offers: instruction sets, threads, memory bandwidth and multiply-add peak.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace pilotfish {

// Instruction sets that were built in and that this machine runs, best first; "portable" is always among them.
std::vector<std::string> instruction_sets();

// The kernels in use: the best ones, until another set is selected.
const KernelTable& kernels();

// Selects an instruction set by name, or the best with "auto". Returns false where the machine does not offer it.
bool select_instruction_set(const std::string& name);

// Processor features that matter here, as the machine names them.
std::vector<std::string> processor_features();

// Physical cores that this process may use: affinity and cgroup quota honoured.
int available_cores();

// Gives memory that was freed back to the system, where the C library would keep it for later.
void release_freed_memory();

// Bytes per second when `threads` threads read memory, and operations of multiply-adds per second (two each): of float32,
// or of products as storage in pairs has them.
double measure_bandwidth(int threads);
double measure_flops(int threads, bool pairs);

}  // namespace pilotfish
