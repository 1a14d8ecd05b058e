// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measurements by name, and the defaults of each.

use crate::action::{self, Action};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    WriteLat,
    WriteBw,
    ReadLat,
    ReadBw,
    SendLat,
    SendBw,
    WriteRate,
    MrReg,
    RdmaTransport,
    ListRead,
    ListWrite,
    AddLat,
    AddRate,
    FetchAddLat,
    FetchAddRate,
    CompareSwapLat,
    CompareSwapRate,
}

use Test::*;

impl Test {
    /// All tests, in the order of their codes.
    pub const ALL: [Test; 17] = [
        WriteLat,
        WriteBw,
        ReadLat,
        ReadBw,
        SendLat,
        SendBw,
        WriteRate,
        MrReg,
        RdmaTransport,
        ListRead,
        ListWrite,
        AddLat,
        AddRate,
        FetchAddLat,
        FetchAddRate,
        CompareSwapLat,
        CompareSwapRate,
    ];

    pub fn name(self) -> &'static str {
        match self {
            WriteLat => "write-lat",
            WriteBw => "write-bw",
            ReadLat => "read-lat",
            ReadBw => "read-bw",
            SendLat => "send-lat",
            SendBw => "send-bw",
            WriteRate => "write-rate",
            MrReg => "mr-reg",
            RdmaTransport => "rdma-transport",
            ListRead => "list-read",
            ListWrite => "list-write",
            AddLat => "add-lat",
            AddRate => "add-rate",
            FetchAddLat => "fetch-add-lat",
            FetchAddRate => "fetch-add-rate",
            CompareSwapLat => "compare-swap-lat",
            CompareSwapRate => "compare-swap-rate",
        }
    }

    pub fn help(self) -> &'static str {
        match self {
            WriteLat => "half a round trip of writes; each side polls the last byte in its memory",
            WriteBw => "bandwidth of a window of writes",
            ReadLat => "one read at a time, from post to completion",
            ReadBw => "bandwidth of a window of reads",
            SendLat => "half a round trip of messages",
            SendBw => "bandwidth of a window of messages",
            WriteRate => "small writes in a window, per second",
            MrReg => "registering a region and closing it again; needs no peer",
            RdmaTransport => "one write at a time, from post to delivery, then one read at a time",
            ListRead => "bandwidth of lists of blocks that are read",
            ListWrite => "bandwidth of lists of blocks that are written",
            AddLat => "one atomic addition to a 64-bit integer at a time, from post to completion",
            AddRate => "atomic additions in a window, per second",
            FetchAddLat => "the same with the value before, which is fetched",
            FetchAddRate => "the same in a window, per second",
            CompareSwapLat => "one atomic compare-and-swap at a time, each of which swaps",
            CompareSwapRate => "the same in a window, per second",
        }
    }

    pub fn parse(name: &str) -> Option<Test> {
        Test::ALL.into_iter().find(|t| t.name() == name)
    }

    /// The number by which peers know the test.
    pub fn code(self) -> u64 {
        Test::ALL.iter().position(|t| *t == self).unwrap_or(0) as u64
    }

    pub fn from_code(code: u64) -> Option<Test> {
        Test::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// True if the result is a time for each operation rather than a rate.
    pub fn is_latency(self) -> bool {
        matches!(self, WriteLat | ReadLat | SendLat | MrReg | RdmaTransport | AddLat | FetchAddLat | CompareSwapLat)
    }

    /// True if the test runs over connectionless endpoints too.
    pub fn is_for_rdm(self) -> bool {
        !matches!(self, MrReg | RdmaTransport | ListRead | ListWrite)
    }

    pub fn is_message(self) -> bool {
        matches!(self, SendLat | SendBw)
    }

    /// True if many operations are outstanding at a time.
    pub fn is_window(self) -> bool {
        matches!(self, WriteBw | ReadBw | SendBw | WriteRate | AddRate | FetchAddRate | CompareSwapRate) || self.is_list()
    }

    /// The atomic operation of the test, if there is one.
    pub fn action(self) -> Option<Action> {
        match self {
            AddLat | AddRate => Some(Action::Add),
            FetchAddLat | FetchAddRate => Some(Action::FetchAdd),
            CompareSwapLat | CompareSwapRate => Some(Action::CompareSwap),
            _ => None,
        }
    }

    /// True if an operation is a list of blocks.
    pub fn is_list(self) -> bool {
        matches!(self, ListRead | ListWrite)
    }

    /// True if one sample covers both directions.
    pub fn is_round_trip(self) -> bool {
        matches!(self, WriteLat | SendLat)
    }

    /// The smallest and the largest size, if the command line names none.
    pub fn default_sizes(self) -> (usize, usize) {
        match self {
            WriteLat | ReadLat | SendLat => (8, 64 << 20),
            WriteBw | ReadBw | SendBw => (64 << 10, 64 << 10),
            WriteRate => (8, 8),
            AddLat | AddRate | FetchAddLat | FetchAddRate | CompareSwapLat | CompareSwapRate => (action::SIZE, action::SIZE),
            MrReg => (4 << 10, 64 << 20),
            RdmaTransport => (8 << 10, 256 << 20),
            ListRead | ListWrite => (16 << 10, 16 << 10),
        }
    }

    /// The number of iterations for a size: many for a quick operation, few for a slow one.
    pub fn default_iterations(self, size: usize) -> u64 {
        let (bytes, low, high) = match self {
            MrReg => return 100_000,
            _ if self.is_latency() => (512 << 20, 20, 100_000),
            _ => (4u64 << 30, 40, 1_000_000),
        };
        (bytes / size.max(1) as u64).clamp(low, high)
    }
}

/// The powers of two from `low` to `high`, and `high` itself.
pub fn sweep(low: usize, high: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut size = low;
    while size < high {
        sizes.push(size);
        size = size.saturating_mul(2);
    }
    sizes.push(high);
    sizes
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn codes_and_names_lead_back() {
        for t in Test::ALL {
            assert_eq!((Test::parse(t.name()), Test::from_code(t.code())), (Some(t), Some(t)));
        }
        assert_eq!(Test::from_code(99), None);
        assert_eq!((sweep(8, 64), sweep(5, 5), sweep(3, 10)), (vec![8, 16, 32, 64], vec![5], vec![3, 6, 10]));
    }
}
