#include "tests/gpu/check.h"

// Only where GoogleTest, whose library has a main of its own, is not installed. The argument is the
// beginning of the names of the tests to run.
#ifdef LODESTONE_OWN_CHECKS
int main(int argc, char** argv) { return ::testing::RunAll(argc > 1 ? argv[1] : ""); }
#endif
