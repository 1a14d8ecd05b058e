// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fabrics: what domains, event queues and passive endpoints are opened in.

use super::info::Info;
use super::{Context, Owner, Users};
use crate::error::Result;
use std::sync::Arc;

pub struct Fabric {
    pub context: Context,
    /// The name of one, or of those that connectionless endpoints go over.
    pub(super) provider: &'static str,
    pub(crate) owner: Owner,
    pub(crate) users: Users,
}

impl Fabric {
    pub fn open(info: &Info) -> Result<Arc<Fabric>> {
        let provider = super::info::provider(info)?.name();
        Ok(Arc::new(Fabric { context: Context::default(), provider, owner: Owner::here(), users: Users::default() }))
    }

    pub fn check_close(&self) -> Result<()> {
        self.owner.check()?;
        self.users.none_or_busy("fabric")
    }
}
