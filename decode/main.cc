#include "decode/config.h"
#include "decode/process.h"
#include "worker/worker_main.h"

int main(int argc, char** argv) {
  return lodestone::WorkerMain<lodestone::DecodeConfig, lodestone::DecodeProcess>(
      "decode", "Holds caches and decodes with continuous batching.", argc, argv);
}
