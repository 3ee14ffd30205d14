// The Python face of lookup.h, apart from bind.cpp, which is long enough.
#pragma once
#include <nanobind/nanobind.h>

void bind_lookup(nanobind::module_& m);
