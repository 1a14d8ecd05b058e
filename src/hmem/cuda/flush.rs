// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A NIC's writes to device memory: whether the device's kernels see them at once, or only after a flush by the driver.

use super::core::{Core, NicWrites};
use super::driver::{Driver, FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER, device};
use crate::error::{Error, Result, errno};

/// CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER; a larger value promises more.
const ORDERED_FOR_OWNER: i32 = 100;
/// CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
const BY_HOST: i32 = 1;

/// The device's treatment of a NIC's writes. A driver that does not know the two attributes answers 0.
pub fn writes(driver: &Driver, number: i32) -> NicWrites {
    if driver.attribute(device::RDMA_WRITES_ORDERING, number) >= ORDERED_FOR_OWNER {
        NicWrites::Ordered
    } else if driver.attribute(device::RDMA_FLUSH_OPTIONS, number) & BY_HOST != 0 {
        NicWrites::Flushed
    } else {
        NicWrites::Loose
    }
}

impl Core {
    pub fn flush(&self, number: u32) -> Result<()> {
        match self.writes.get(number as usize) {
            Some(NicWrites::Ordered) => Ok(()),
            Some(NicWrites::Flushed) => {
                let _current = self.enter(number)?;
                // SAFETY: two constants of the driver's; the call waits for writes and changes nothing.
                let status = unsafe { self.driver.cuFlushGPUDirectRDMAWrites(FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER) }?;
                self.driver.check("cuFlushGPUDirectRDMAWrites", status)
            }
            Some(NicWrites::Loose) => Err(Error::new(
                errno::EOPNOTSUPP,
                format!("cuda: device {number} neither orders a NIC's writes into its memory nor has a flush that the host can call"),
            )),
            None => Err(Error::new(errno::ENODEV, format!("cuda: device {number} does not exist; this process has {}", self.facts.len()))),
        }
    }
}
