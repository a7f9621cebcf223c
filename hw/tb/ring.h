// A queue of fixed capacity (a power of two) without allocation.
#pragma once

#include <cstdint>

namespace edgerun {

template <typename T, uint32_t CAPACITY>
class Ring {
  static_assert((CAPACITY & (CAPACITY - 1)) == 0, "the capacity must be a power of two");

 public:
  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ == CAPACITY; }
  uint32_t size() const { return tail_ - head_; }
  T& front() { return items_[head_ % CAPACITY]; }
  const T& front() const { return items_[head_ % CAPACITY]; }
  void push(const T& item) { items_[tail_++ % CAPACITY] = item; }
  void pop() { ++head_; }
  void clear() { head_ = tail_; }

 private:
  T items_[CAPACITY];
  uint32_t head_ = 0, tail_ = 0;
};

}  // namespace edgerun
