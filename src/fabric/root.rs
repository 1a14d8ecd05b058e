// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fabrics, in which domains, event queues and passive endpoints are opened.

use super::info::Info;
use super::origin::OpenedNames;
use super::users::{Users, none_or_busy};
use super::{Context, Owner};
use crate::error::Result;
use std::sync::Arc;

pub struct Fabric {
    pub context: Context,
    pub(super) origin: OpenedNames,
    pub(crate) owner: Owner,
    pub(crate) users: Users,
}

impl Fabric {
    pub fn open(info: &Info) -> Result<Arc<Fabric>> {
        let origin = OpenedNames::of_fabric(super::info::provider(info)?.name(), info);
        Ok(Arc::new(Fabric { context: Context::default(), origin, owner: Owner::here(), users: Users::default() }))
    }

    pub fn check_close(&self) -> Result<()> {
        self.owner.check()?;
        none_or_busy("fabric", &self.users.open())
    }
}
