// Where memory from the driver comes to lie. Between releases up to 2.11 addresses decide ties, so
// the model must be told them: from the record where it verifies, by assumption where it asks what
// if.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "timeline/timeline.h"

namespace plimsoll {

class Driver {
 public:
  virtual ~Driver() = default;
  /// cudaMalloc: the address of a new segment.
  virtual Address NewSegment(Bytes size) = 0;
  /// cudaFree.
  virtual void FreeSegment(Address address, Bytes size) = 0;
  /// cuMemAddressReserve: the address of a new expandable segment for this stream and pool.
  struct Reservation {
    Bytes size = 0;
    std::uint16_t stream = 0;
    std::uint8_t pool = 0;
    bool small = false;
  };
  virtual Address NewReservation(const Reservation& reservation) = 0;
  /// cuMemAddressFree.
  virtual void FreeReservation(Address) {}
  /// Addresses that are in use from before the record.
  virtual void Occupy(Address, Bytes, bool /*expandable*/) {}
};

/// What a call to the driver costs, as measured on an H200 (CUDA 13, torch 2.11, an idle GPU). A
/// release before a retry also waits for the GPU, which no record can price.
///
///   cudaMalloc   31 µs for 2 MiB, 50 for 100 MiB, 187 for 2,000 MiB, 610 for 8,000 MiB
///   cudaFree     27 µs, 60, 534, 2,807 for the same
///   a mapping    30 µs, and 15 to 27 for each page; unmapping 36 to 43 a page
double DriverMicroseconds(Action action, Bytes size, Bytes page);

/// Addresses for a run that did not take place. The k-th segment of a size takes the k-th recorded
/// address of that size while that range is free; others lie as an H200's driver was seen to put
/// them: in regions of 32 MiB, downward from the lowest address of the record.
class AssumedDriver : public Driver {
 public:
  explicit AssumedDriver(const Timeline& timeline);

  Address NewSegment(Bytes size) override;
  void FreeSegment(Address address, Bytes size) override;
  Address NewReservation(const Reservation& reservation) override;
  void Occupy(Address address, Bytes size, bool expandable) override;

 private:
  struct Recorded {
    std::vector<Address> addresses;
    std::size_t used = 0;
  };

  /// Where the range begins that overlaps this one, if there is one.
  std::optional<Address> InTheWay(Address address, Bytes size) const;
  void Take(Address address, Bytes size);
  Address FreshAddress(Address bytes);

  HashMap<Bytes, Recorded> recorded_;
  std::map<Address, Bytes> taken_;
  /// The next fresh region lies below this.
  Address lowest_;
  /// The region that small segments fill upward, and where its free part begins.
  Address region_ = 0;
  Address region_next_ = 0;
  Address next_reservation_;
};

/// Addresses in no order at all: each segment lies by itself, where a number that depends on `seed`
/// puts it. What comes out of several seeds shows how much hangs on a driver's whim.
class ShuffledDriver : public Driver {
 public:
  explicit ShuffledDriver(std::uint64_t seed) : seed_(seed) {}

  Address NewSegment(Bytes size) override;
  void FreeSegment(Address, Bytes) override {}
  Address NewReservation(const Reservation& reservation) override;

 private:
  std::uint64_t seed_;
  std::uint64_t made_ = 0;
  Address next_reservation_ = Address{1} << 33;
};

}  // namespace plimsoll
