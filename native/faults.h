// What can go wrong by a caller's doing. The binding turns each into the Python exception of the same meaning.
#pragma once
#include <stdexcept>
#include <string>

namespace pilotfish {

struct RowsFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct CacheFullFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct TensorFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct BusyFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class Fault, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::string message;
  const auto append = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
      message += std::to_string(part);
    else
      message += part;
  };
  (append(parts), ...);
  throw Fault(message);
}

}  // namespace pilotfish
