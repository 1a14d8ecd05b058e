// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of blocks under test: their options, the number of blocks, and the way in which they are scattered.

use crate::cli::Args;
use crate::io::Link;
use crate::post::{Op, posted};
use crate::tests::Test;
use gdrfab::error::Result as Outcome;
use gdrfab::fabric::{Block, Endpoint, LIST_MAX, List, Prepared};
use gdrfab::prov::flags;
use gdrfab::prov::op::Common;
use std::sync::Arc;

pub const HELP: &str = "      --blocks N        blocks of a list, each of --size bytes, for list-read and list-write (1000)
      --pattern HOW     random: in any order; strided: every second one, then the others
";

/// Consecutive blocks of a list lie this many places apart, so that none adjoins the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    Random,
    Strided,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocks {
    pub count: usize,
    pub pattern: Pattern,
    given: bool,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks { count: 1000, pattern: Pattern::Random, given: false }
    }
}

impl Blocks {
    /// Takes one option of the command line. False: it is none of these.
    pub fn take(&mut self, option: &str, args: &mut Args) -> Result<bool, String> {
        match option {
            "--blocks" => self.count = args.number(option, "a number from 1 up")?,
            "--pattern" => {
                self.pattern = match args.value(option)?.as_str() {
                    "random" => Pattern::Random,
                    "strided" => Pattern::Strided,
                    word => return Err(format!("--pattern {word}: random or strided is expected")),
                }
            }
            _ => return Ok(false),
        }
        self.given = true;
        Ok(true)
    }

    /// Checks the rules between the options, and gives the blocks of one operation of each size.
    pub fn apply(&self, test: Test, both: bool, list: usize, sizes: &mut [usize]) -> Result<(), String> {
        if !test.is_list() {
            return if self.given { Err(format!("--blocks, --pattern: for lists only; {} has none", test.name())) } else { Ok(()) };
        }
        if !(1..=LIST_MAX).contains(&self.count) {
            return Err(format!("--blocks {}: 1 to {LIST_MAX} is expected", self.count));
        }
        if both || list > 1 {
            return Err(format!("{}: not in both directions, and one list to a post", test.name()));
        }
        for size in sizes {
            *size = size.checked_mul(self.count).filter(|n| *n <= 1 << 40).ok_or("--size, --blocks: too many bytes")?;
        }
        Ok(())
    }

    pub fn words(&self, sizes: &[usize]) -> String {
        let each: Vec<String> = sizes.iter().map(|size| (size / self.count).to_string()).collect();
        let order = if self.pattern == Pattern::Random { "in random order" } else { "strided" };
        format!("lists of {} blocks of {} bytes, {order}", self.count, each.join(", "))
    }

    /// The blocks of `size` bytes between `buf` here and `addr` at the peer; each has the same place on both sides.
    pub fn of(&self, buf: usize, addr: u64, size: usize) -> Vec<Block> {
        let len = size / self.count;
        let mut places: Vec<usize> = (0..self.count).step_by(2).chain((1..self.count).step_by(2)).collect();
        if self.pattern == Pattern::Random {
            let mut x = 0x9E37_79B9_7F4A_7C15u64;
            for i in (1..places.len()).rev() {
                // xorshift: any order will do, as long as it is the same in every run.
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                places.swap(i, (x % (i as u64 + 1)) as usize);
            }
        }
        places.iter().map(|at| Block { buf: buf + at * len, addr: addr.wrapping_add((at * len) as u64), len }).collect()
    }
}

impl Link {
    /// A prepared list for each endpoint, whose blocks together are the operation's bytes.
    pub fn lists(&self, op: &Op, blocks: &Blocks) -> Outcome<Vec<Arc<Prepared>>> {
        let all = blocks.of(op.local.addr(), op.remote.addr, op.local.len());
        let common = Common { timeout_ns: self.timeout_ns, ..Common::default() };
        let prepare = |ep: &Arc<Endpoint>| {
            // SAFETY: the memory under test stays as long as the link.
            let list = unsafe { List::new(&all, &[self.desc], &[op.remote.key], ep.max_msg_size())? };
            Ok(Prepared::new(ep.clone(), list, common))
        };
        self.eps.iter().map(prepare).collect()
    }
}

/// Posts a list. False: there is no room; make progress first.
pub fn post(op: &Op, list: &Prepared, signal: bool, lane: usize) -> Outcome<bool> {
    posted(list.post(op.dir, if signal { flags::COMPLETION } else { 0 }, 0, lane))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn every_place_has_one_block() {
        for pattern in [Pattern::Random, Pattern::Strided] {
            for count in [1, 2, 7, 1000] {
                let of = Blocks { count, pattern, given: true }.of(4096, 1 << 20, count * 16);
                let mut places: Vec<usize> = of.iter().map(|b| b.buf).collect();
                assert!(of.iter().all(|b| b.len == 16 && b.addr - (1 << 20) == (b.buf - 4096) as u64));
                places.sort_unstable();
                assert_eq!(places, (0..count).map(|i| 4096 + i * 16).collect::<Vec<_>>());
            }
        }
    }
}
