#include "prefill/config.h"
#include "prefill/process.h"
#include "worker/worker_main.h"

int main(int argc, char** argv) {
  return lodestone::WorkerMain<lodestone::PrefillConfig, lodestone::PrefillProcess>(
      "prefill", "Computes prompts and hands their caches to decode workers.", argc, argv);
}
