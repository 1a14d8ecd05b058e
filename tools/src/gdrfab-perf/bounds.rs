// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits of a server for a client's plan. A client that sends a plan has proved nothing yet, so the plan is checked
//! before the server allocates or waits for anything.

use crate::cli::Args;
use crate::layout::Layout;
use crate::values;
use crate::wire::{PATIENCE_MS, Plan};

pub const HELP: &str = "      --max-memory SIZE server: memory that a client's test may take here (1G)
      --max-time SEC    server: seconds that a client may stay (3600)
";

/// The bytes that are assumed for an endpoint's own queues and buffers.
const ENDPOINT: usize = 4 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    pub memory: usize,
    pub seconds: f64,
    /// The time limit for connecting a client.
    pub meeting_ms: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { memory: 1 << 30, seconds: 3600.0, meeting_ms: PATIENCE_MS }
    }
}

/// The memory that a plan takes on either side.
pub fn cost(plan: &Plan) -> usize {
    let layout = Layout::of(plan);
    layout.bytes() + layout.mailbox() + plan.endpoints * ENDPOINT
}

impl Bounds {
    /// Takes one option of the command line. False: it is none of these.
    pub fn take(&mut self, option: &str, args: &mut Args) -> Result<bool, String> {
        match option {
            "--max-memory" => {
                let text = args.value(option)?;
                self.memory = values::size(&text).ok_or_else(|| format!("{option} {text}: a size such as 64M or 4G is expected"))?;
            }
            "--max-time" => self.seconds = values::seconds(args, option)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The plan, if it can be carried out; or the reason why not, in words for the client.
    pub fn admit(&self, plan: Plan) -> Result<Plan, String> {
        let cost = cost(&plan);
        if cost > self.memory {
            // The refused value stands first, because a card's rejection carries only some fifty bytes.
            return Err(format!("beyond --max-memory {}: this test takes {cost} bytes here", self.memory));
        }
        Ok(plan)
    }

    /// The milliseconds for connecting with a client of that plan.
    pub fn meeting_ms(&self, plan: &Plan) -> u64 {
        plan.patience_ms().min(self.meeting_ms)
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::memory::Kind;
    use crate::tests::Test;
    use crate::wire::PeerMemory;
    use gdrfab::mr::Paths;

    fn plan(test: Test, max_size: usize, depth: usize, endpoints: usize, deadline_ms: u64) -> Plan {
        Plan {
            test,
            max_size,
            depth,
            memory: Kind::Alloc,
            path: Paths::empty(),
            deadline_ms,
            coop: true,
            verify: false,
            one_thread: true,
            auto: false,
            sleep: false,
            yields: false,
            one_way: false,
            both: false,
            endpoints,
            list: 1,
            inline: None,
            rdm: false,
            tagged: false,
        }
    }

    #[test]
    fn no_plan_that_can_be_said_costs_more_than_the_bounds() {
        let bounds = Bounds { memory: 256 << 20, seconds: 2.0, meeting_ms: 500 };
        let (mut admitted, mut refused) = (0, 0);
        for test in Test::ALL {
            for shift in 0..=40 {
                for (depth, endpoints) in [(1, 1), (64, 1), (1024, 1), (1024, 64)] {
                    for deadline_ms in [0, 1, 60_000, u64::from(u32::MAX)] {
                        let bytes = plan(test, 1 << shift, depth, endpoints, deadline_ms).encode(PeerMemory::default());
                        // Bytes that are no plan are refused elsewhere.
                        let Ok((plan, _)) = Plan::decode(&bytes) else { continue };
                        match bounds.admit(plan) {
                            Ok(plan) => {
                                admitted += 1;
                                assert!(cost(&plan) <= bounds.memory && bounds.meeting_ms(&plan) <= 500, "{plan:?}");
                            }
                            Err(words) => {
                                refused += 1;
                                assert!(words.contains("--max-memory"));
                            }
                        }
                    }
                }
            }
        }
        assert!(admitted > 100 && refused > 100, "{admitted} {refused}");
        let usual = Bounds::default();
        assert!(usual.admit(plan(Test::SendBw, 64 << 20, 64, 64, 0)).is_ok(), "the longest of --all");
        assert!(usual.admit(plan(Test::WriteBw, 256 << 20, 64, 1, 0)).is_ok());
    }
}
