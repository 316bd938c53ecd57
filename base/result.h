// Errors as values. An Error says what was tried, on what, why it failed and, where known, what to do.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace muster {

// What kind of failure this is, for code that must decide; the message is for people.
enum class Errc {
  kInvalid,      // the caller's input is wrong; trying again will not help
  kNotFound,     // the named thing does not exist
  kConflict,     // a compare-and-swap lost, or a newer term or generation has taken over
  kCorrupt,      // data is there but does not verify
  kDenied,       // the caller may not do this
  kUnavailable,  // the other side does not answer now; trying again may help
  kExhausted,    // a limit was reached: full pool, quota, memory budget
  kInternal,
};

struct Error {
  Errc code = Errc::kInternal;
  std::string message;
};

// Whether the same may succeed later, with nobody's help but time's or an administrator's.
inline bool MayPass(const Error& error) {
  return error.code == Errc::kUnavailable || error.code == Errc::kExhausted;
}

// A value or an Error. Not thread-safe beyond what T is.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  [[nodiscard]] const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

// Success, or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : failed_(true), error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  bool failed_ = false;
  Error error_;
};

}  // namespace muster
