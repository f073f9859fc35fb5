#include "tests/tools/scripted_workers.h"
