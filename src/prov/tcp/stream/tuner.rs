// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides whether further streams carry long bodies faster than one stream does. Further streams are asked for if the
//! network limits the one stream, and neither the peer nor this host does. Then several streams are tried, because this
//! side cannot tell a link that the connection has for itself from its share of a wide link. The faster way is kept,
//! and the other way is tried again after growing pauses.

use crate::sys::health::Tally;

/// Time between two looks at the kernel's counters.
const LOOK_NS: u64 = 10_000_000;
/// Least time with data to send that makes a sample.
const SAMPLE_NS: u64 = 400_000_000;
/// Least bytes that make a sample.
const SAMPLE_BYTES: u64 = 1 << 20;
/// Least number of round trips that makes a sample: on a long path a window takes several round trips to open.
const SAMPLE_TRIPS: u64 = 16;
/// With fewer bytes than this in flight and no body queued, the connection counts as idle.
const BUSY: u64 = 64 << 10;
/// Most samples of a trial, with one stream and with several: on a path that loses packets, small windows take seconds to grow.
const TRIALS: [u32; 2] = [2, 10];
/// Number of samples between two trials, at first and at most.
const PAUSES: (u32, u32) = (16, 256);
/// While several streams are used, the pause is this many times as long, because a trial of one stream costs more in this state.
const USED: u32 = 4;
/// Several streams are taken if their rate is at least this many percent of one stream's. The value differs from
/// `KEEP_PERCENT` because rates vary for seconds on a path that loses packets, and a stream that has rested begins
/// fast.
const TAKE_PERCENT: u64 = 115;
/// Several streams are given up if their rate is below this many percent of one stream's.
const KEEP_PERCENT: u64 = 95;
/// The rate grows, if a sample has at least this many percent of the mean.
const GROW_PERCENT: u64 = 105;

/// A stretch of time in which there was data to send.
#[derive(Clone, Copy, Default)]
pub struct Sample {
    pub ns: u64,
    pub bytes: u64,
    /// Number of looks.
    pub looks: u32,
    /// Number of looks that found unsent bytes, as the look before did. Right after a post every look finds some.
    pub waits: u32,
    /// Time with data in flight.
    pub busy_us: u64,
    /// The part of `busy_us` in which the peer's window was closed.
    pub shut_us: u64,
}

impl Sample {
    /// True if data had to wait most of the time, and not because of the peer. On a host whose CPUs are the limit,
    /// nothing is in flight half of the time, even if the socket is full at every look.
    pub fn is_held_up(&self) -> bool {
        2 * self.waits >= self.looks && self.busy_us >= self.ns / 10_000 * 9 && 4 * self.shut_us <= self.busy_us
    }

    /// The rate in KB/s.
    fn rate(&self) -> u64 {
        self.bytes.saturating_mul(1_000_000) / self.ns.max(1)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum TunerStage {
    /// One stream is used; true: the network held up the last sample.
    One(bool),
    /// Further streams were asked for.
    Asked,
    /// Further streams are connected. `trial` true: one way is being tried, for `left` more samples. False: `left` more
    /// samples are taken before the next trial.
    Open { trial: bool, left: u32 },
}

/// Measures and decides.
pub struct StreamTuner {
    stage: TunerStage,
    /// Bodies go over the further streams.
    uses: bool,
    /// The next sample does not count, because the windows have to open first.
    fresh: bool,
    /// Number of samples between two trials.
    pause: u32,
    /// Mean rates of the last samples, with one stream and with several.
    rates: [u64; 2],
    /// The time of the next look.
    due: u64,
    /// While there is data to send: the time and the counters of the last look, and whether bytes were waiting then.
    last: Option<(u64, Tally, bool)>,
    /// A long body was posted since the connection was last idle.
    had_body: bool,
    /// The largest window that the peer has offered.
    widest: u32,
    sample: Sample,
}

impl StreamTuner {
    pub fn new() -> StreamTuner {
        StreamTuner {
            stage: TunerStage::One(false),
            uses: false,
            fresh: true,
            pause: PAUSES.0,
            rates: [0; 2],
            due: 0,
            last: None,
            had_body: false,
            widest: 0,
            sample: Sample::default(),
        }
    }

    /// Notes that a body was posted that could go over further streams.
    pub fn note_body(&mut self) {
        self.had_body = true;
    }

    /// True if bodies go over the further streams.
    pub fn uses(&self) -> bool {
        self.uses
    }

    /// True if a look is due.
    pub fn is_due(&self, now: u64) -> bool {
        self.had_body && now >= self.due
    }

    /// Looks at the counters of all streams. `in_stripes`: whether the body that is being sent is striped; `blocked`:
    /// sending waits for room. True: further streams are to be asked for.
    pub fn look(&mut self, now: u64, sum: &Tally, in_stripes: Option<bool>, blocked: bool) -> bool {
        self.due = now + LOOK_NS;
        self.widest = self.widest.max(sum.window);
        if in_stripes.is_none() && sum.queued < BUSY {
            (self.had_body, self.last) = (false, None);
            return false;
        }
        // A body that was begun in the other way is finished in that way, and does not count.
        if in_stripes.is_some_and(|way| way != self.uses) {
            self.last = None;
            return false;
        }
        let held = blocked || sum.unsent > 0;
        if let Some((then, last, was_held)) = self.last.replace((now, *sum, held)) {
            let s = &mut self.sample;
            s.ns += now - then;
            s.bytes += sum.acked.saturating_sub(last.acked);
            s.looks += 1;
            s.waits += u32::from(held && was_held);
            s.busy_us += sum.busy_us.saturating_sub(last.busy_us);
            // If the window is full but as large as ever, the receiver's buffer is too small for the path. More streams
            // cure this, so only a window that has shrunk counts against the peer.
            if sum.window / 3 * 4 < self.widest {
                s.shut_us += sum.full_us.saturating_sub(last.full_us);
            }
        }
        let least = SAMPLE_NS.max(u64::from(sum.rtt_us) * 1000 * SAMPLE_TRIPS);
        if self.sample.ns < least || self.sample.bytes < SAMPLE_BYTES {
            return false;
        }
        let sample = std::mem::take(&mut self.sample);
        self.compare(&sample)
    }

    /// Takes a sample into account. True: further streams are to be asked for.
    fn compare(&mut self, sample: &Sample) -> bool {
        let held_up = sample.is_held_up();
        crate::log!(Debug, "several streams in use: {}, {} KB/s, limited by the network: {held_up}", self.uses, sample.rate());
        if std::mem::take(&mut self.fresh) {
            return false;
        }
        let way = usize::from(self.uses);
        let (rate, first) = (sample.rate(), self.stage == TunerStage::Open { trial: true, left: TRIALS[way] });
        let mean = &mut self.rates[way];
        let grows = first || rate >= *mean / 100 * GROW_PERCENT;
        *mean = if first || *mean == 0 { rate } else { (3 * *mean + rate) / 4 };
        match self.stage {
            TunerStage::One(true) if held_up => self.stage = TunerStage::Asked,
            TunerStage::One(_) => self.stage = TunerStage::One(held_up),
            TunerStage::Asked => return false,
            TunerStage::Open { trial: true, left: left @ 2.. } if grows && (first || !self.uses || !self.reaches(TAKE_PERCENT)) => {
                self.stage = TunerStage::Open { trial: true, left: left - 1 };
            }
            TunerStage::Open { trial: true, .. } => {
                let better = self.reaches(if self.uses { TAKE_PERCENT } else { KEEP_PERCENT });
                self.pause = if better == self.uses { PAUSES.0 } else { PAUSES.1.min(2 * self.pause) };
                self.fresh = better != self.uses;
                self.uses = better;
                self.stage = TunerStage::Open { trial: false, left: if better { USED * self.pause } else { self.pause } };
            }
            // Several streams have become slower than one stream was.
            TunerStage::Open { .. } if self.uses && !self.reaches(KEEP_PERCENT) => self.switch(),
            TunerStage::Open { left: 0, .. } if self.uses || held_up => self.switch(),
            TunerStage::Open { left, .. } => self.stage = TunerStage::Open { trial: false, left: left.saturating_sub(1) },
        }
        self.stage == TunerStage::Asked
    }

    /// True if the rate of several streams is at least this many percent of one stream's.
    fn reaches(&self, percent: u64) -> bool {
        self.rates[1] >= self.rates[0] / 100 * percent
    }

    /// Begins a trial of the way that is not used now.
    fn switch(&mut self) {
        (self.uses, self.fresh, self.sample) = (!self.uses, true, Sample::default());
        self.stage = TunerStage::Open { trial: true, left: TRIALS[usize::from(self.uses)] };
    }

    /// Called when further streams are connected. If this side asked for the streams, a trial begins.
    pub fn open(&mut self) {
        match self.stage {
            TunerStage::Asked => self.switch(),
            _ => self.stage = TunerStage::Open { trial: false, left: 0 },
        }
        self.last = None;
    }

    /// A sentence about the decision, for people.
    pub fn words(&self) -> String {
        let [one, several] = self.rates.map(|kb| kb / 1000);
        match self.stage {
            TunerStage::One(_) => "one stream is enough: the network does not limit it".into(),
            _ if one == 0 => "the peer requested them".into(),
            _ if several == 0 => format!("the network limits one stream to {one} MB/s"),
            _ => format!("{several} MB/s over several streams, {one} MB/s over one"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const WINDOW: u32 = 3 << 20;

    /// A sender of long bodies, with its kernel's counters.
    struct Sender {
        tuner: StreamTuner,
        now: u64,
        sum: Tally,
    }

    /// The findings of a look: KB that arrived, percent of the time with data in flight and with a full window, the size of the
    /// window, and bytes unsent.
    struct Look {
        kb: u64,
        busy: u64,
        full: u64,
        window: u32,
        unsent: u64,
    }

    const LIMITED: Look = Look { kb: 100, busy: 100, full: 0, window: WINDOW, unsent: 1 << 20 };

    impl Sender {
        fn new() -> Sender {
            let sum = Tally { window: WINDOW, ..Tally::default() };
            Sender { tuner: StreamTuner::new(), now: MS, sum }
        }

        /// Looks for `ms` milliseconds, or until further streams are asked for.
        fn sends(&mut self, ms: u64, look: &Look) -> bool {
            let end = self.now + ms * MS;
            while self.now < end {
                let step = LOOK_NS / 1000;
                self.now += LOOK_NS;
                let Tally { acked, busy_us, full_us, .. } = self.sum;
                self.sum = Tally {
                    acked: acked + look.kb * 1000,
                    queued: 4 << 20,
                    unsent: look.unsent,
                    busy_us: busy_us + step * look.busy / 100,
                    full_us: full_us + step * look.full / 100,
                    window: look.window,
                    rtt_us: 100,
                };
                self.tuner.note_body();
                assert!(self.tuner.is_due(self.now));
                if self.tuner.look(self.now, &self.sum, Some(self.tuner.uses()), false) {
                    return true;
                }
            }
            false
        }

        fn opened(look: &Look) -> Sender {
            let mut s = Sender::new();
            assert!(s.sends(5000, look));
            s.tuner.open();
            s
        }
    }

    #[test]
    fn a_path_that_holds_one_up_is_reason_to_ask_once() {
        let mut s = Sender::new();
        assert!(!s.sends(1000, &LIMITED) && s.sends(1000, &LIMITED));
        assert!(s.tuner.words().contains("to 10 MB/s"), "{}", s.tuner.words());
        assert!(!s.sends(5000, &LIMITED) && !s.tuner.uses());
        // A receiver's buffer that is too small for the path is full but open.
        assert!(Sender::new().sends(2000, &Look { full: 95, ..LIMITED }));
        // On long paths samples take longer.
        let mut far = Sender::new();
        far.sum.rtt_us = 100;
        assert!(!far.sends(1000, &LIMITED));
    }

    #[test]
    fn a_slow_peer_or_host_is_none() {
        let slow_peer = Look { full: 90, window: WINDOW / 10, ..LIMITED };
        let slow_host = Look { busy: 50, ..LIMITED };
        let slow_program = Look { unsent: 0, ..LIMITED };
        for look in [slow_peer, slow_host, slow_program] {
            let mut s = Sender::new();
            // The peer's window was open once.
            s.sends(20, &Look { kb: 0, ..LIMITED });
            assert!(!s.sends(10_000, &look));
            assert!(s.tuner.words().contains("does not limit"));
        }
        // A peer that reads late acknowledges late: each second look comes right behind a post.
        let mut s = Sender::new();
        for _ in 0..1000 {
            for unsent in [1 << 20, 0] {
                assert!(!s.sends(10, &Look { unsent, ..LIMITED }));
            }
        }
        // Too few bytes for a sample.
        assert!(!Sender::new().sends(1000, &Look { kb: 1, ..LIMITED }));
    }

    #[test]
    fn the_faster_way_is_kept() {
        let mut s = Sender::opened(&LIMITED);
        assert!(s.tuner.uses());
        s.sends(1300, &Look { kb: 350, ..LIMITED });
        assert!(s.tuner.uses() && s.tuner.words().starts_with("35 MB/s over several streams, 10 MB/s over one"));
        // One stream alone is tried again after a while, and is no faster.
        let mut alone = 0;
        for _ in 0..100 {
            s.sends(400, &Look { kb: if s.tuner.uses() { 350 } else { 100 }, ..LIMITED });
            alone += u32::from(!s.tuner.uses());
        }
        assert!(s.tuner.uses() && (2..6).contains(&alone), "{alone}");
        // Several streams that become slower than one stream was are found out before the next trial.
        for _ in 0..20 {
            s.sends(400, &Look { kb: if s.tuner.uses() { 50 } else { 100 }, ..LIMITED });
        }
        assert!(!s.tuner.uses());
    }

    #[test]
    fn windows_that_open_slowly_get_their_time() {
        let mut s = Sender::opened(&LIMITED);
        for kb in [10, 20, 35, 50, 65, 80, 95, 110, 125] {
            assert!(s.tuner.uses(), "{kb}");
            s.sends(400, &Look { kb, ..LIMITED });
        }
        s.sends(2000, &Look { kb: 140, ..LIMITED });
        assert!(s.tuner.uses(), "{}", s.tuner.words());
        // The windows do not open at all.
        let mut s = Sender::opened(&LIMITED);
        s.sends(1300, &Look { kb: 50, ..LIMITED });
        assert!(!s.tuner.uses());
    }

    #[test]
    fn streams_that_are_no_faster_rest_and_are_tried_less_and_less() {
        let mut s = Sender::opened(&LIMITED);
        s.sends(1300, &Look { kb: 105, ..LIMITED });
        assert!(!s.tuner.uses());
        let mut tried = 0;
        for _ in 0..200 {
            s.sends(400, &LIMITED);
            tried += u32::from(s.tuner.uses());
        }
        assert!(!s.tuner.uses() && (4..20).contains(&tried), "{tried}");
    }

    #[test]
    fn a_side_that_was_not_held_up_does_not_try_the_peers_streams() {
        let mut s = Sender::new();
        s.tuner.open();
        s.sends(5000, &Look { busy: 50, ..LIMITED });
        assert!(!s.tuner.uses());
        assert!(!s.sends(1000, &LIMITED) && s.tuner.uses());
    }

    #[test]
    fn bodies_of_the_other_way_and_talk_between_them_do_not_count() {
        let mut s = Sender::new();
        s.tuner.note_body();
        for _ in 0..1000 {
            s.now += LOOK_NS;
            s.sum.acked += 1 << 20;
            s.sum.busy_us += 10_000;
            assert!(!s.tuner.look(s.now, &s.sum, Some(true), true));
        }
        assert_eq!(s.tuner.sample.looks, 0);
        assert!(!s.tuner.look(s.now, &Tally { queued: BUSY - 1, ..s.sum }, None, false) && !s.tuner.is_due(u64::MAX));
    }
}
