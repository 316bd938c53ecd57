// What the thread sanitizer is to leave alone in every test: libraries of the distribution that are not built with it.

extern "C" const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return
      // spdlog's registry is made once, behind a guard that the sanitizer does not see; whoever logs next reads what was made.
      "race:spdlog::details::registry::registry\n";
}
