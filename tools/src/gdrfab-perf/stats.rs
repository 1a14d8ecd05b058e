// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clock ticks, and statistics of many samples. A histogram with buckets of 0.4 % keeps a run of any length in constant
//! memory; minimum, maximum, mean and deviation are exact.

use gdrfab::sys::time::{now_ns, ticks};

const BITS: u32 = 8;
const HALF: u64 = 1 << BITS;

/// The frequency of the tick counter.
#[derive(Clone, Copy)]
pub struct Clock {
    pub ticks_per_us: f64,
}

impl Clock {
    pub fn calibrate() -> Clock {
        const LONG_NS: u64 = 20_000_000;
        let (t0, n0) = (ticks(), now_ns());
        let mut n1 = now_ns();
        while n1 - n0 < LONG_NS {
            n1 = now_ns();
        }
        Clock { ticks_per_us: (ticks() - t0) as f64 * 1000.0 / (n1 - n0) as f64 }
    }

    pub fn ticks_of_us(self, us: f64) -> u64 {
        (us * self.ticks_per_us) as u64
    }

    pub fn us(self, ticks: f64) -> f64 {
        ticks / self.ticks_per_us
    }
}

pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    low: u64,
    high: u64,
    /// Sums of the distances from the first sample, which keeps the squares small.
    first: f64,
    sum: f64,
    squares: f64,
}

fn bucket(v: u64) -> usize {
    if v < HALF {
        return v as usize;
    }
    let e = 63 - v.leading_zeros();
    ((u64::from(e - BITS) + 1) * HALF + ((v >> (e - BITS)) - HALF)) as usize
}

fn middle(bucket: usize) -> u64 {
    let b = bucket as u64;
    if b < HALF {
        return b;
    }
    let shift = b / HALF - 1;
    ((HALF + b % HALF) << shift) + ((1 << shift) >> 1)
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram { buckets: vec![0; bucket(u64::MAX) + 1], count: 0, low: u64::MAX, high: 0, first: 0.0, sum: 0.0, squares: 0.0 }
    }

    #[inline]
    pub fn record(&mut self, v: u64) {
        self.buckets[bucket(v)] += 1;
        if self.count == 0 {
            self.first = v as f64;
        }
        self.count += 1;
        self.low = self.low.min(v);
        self.high = self.high.max(v);
        let d = v as f64 - self.first;
        self.sum += d;
        self.squares += d * d;
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn min(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.low as f64 }
    }

    pub fn max(&self) -> f64 {
        self.high as f64
    }

    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.first + self.sum / self.count as f64 }
    }

    pub fn deviation(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let n = self.count as f64;
        ((self.squares - self.sum * self.sum / n) / (n - 1.0)).max(0.0).sqrt()
    }

    /// The value that the share `q` of all samples does not exceed.
    pub fn quantile(&self, q: f64) -> f64 {
        let rank = ((self.count as f64 * q).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (b, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return (middle(b) as f64).clamp(self.min(), self.max());
            }
        }
        0.0
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn buckets_cover_everything_within_their_precision() {
        for v in (0..2000).chain([1 << 20, (1 << 40) + 12345, u64::MAX]) {
            let m = middle(bucket(v)) as f64;
            assert!((m - v as f64).abs() <= v as f64 / 256.0 + 0.5, "{v} -> {m}");
        }
    }

    #[test]
    fn moments_and_quantiles_of_a_known_series() {
        let mut h = Histogram::new();
        (1..=1000u64).for_each(|v| h.record(v * 100));
        assert_eq!((h.min(), h.max(), h.mean()), (100.0, 100_000.0, 50_050.0));
        assert!((h.deviation() - 28_881.9).abs() < 0.1);
        assert!((h.quantile(0.5) - 50_000.0).abs() < 250.0 && (h.quantile(0.99) - 99_000.0).abs() < 500.0);
        assert_eq!((Histogram::new().quantile(0.5), Histogram::new().mean()), (0.0, 0.0));
    }
}
