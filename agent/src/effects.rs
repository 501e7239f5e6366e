//! The real outside world of a plan: netlink, the BPF side, and the settings below /proc/sys.

use crate::{
    apply::{Effects, StepError},
    dataplane::Dataplane,
    netlink::Netlink,
    plan::{Action, reassigned},
    sysctl::{SysctlError, Sysctls},
};

/// What a plan acts on.
#[derive(Debug)]
pub struct Node<'a> {
    pub netlink: &'a Netlink,
    pub dataplane: &'a Dataplane,
    pub sysctls: &'a Sysctls,
}

impl Effects for Node<'_> {
    async fn perform(&mut self, action: &Action) -> Result<(), StepError> {
        let dataplane = self.dataplane;
        match action {
            Action::SetSysctl { key, value, .. } => self.sysctls.write(key, value).map_err(failed),
            Action::RestoreSysctl { key, value } => match self.sysctls.write(key, value) {
                // the NIC is gone, and with it what we changed
                Err(SysctlError::Write { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
                other => other.map_err(failed),
            },
            Action::Load { .. } => dataplane.load().map_err(failed),
            Action::Unload => dataplane.unload().map_err(failed),
            Action::Publish { new, old } => {
                dataplane.publish(new).map_err(failed)?;
                for slot in reassigned(old, new) {
                    dataplane.reset_counters(slot).map_err(failed)?;
                }
                Ok(())
            }
            Action::Attach { hook, position } => dataplane.attach(*hook, *position).map_err(failed),
            Action::Refresh { hook } => dataplane.refresh(*hook).map_err(failed),
            Action::Detach { hook, .. } => dataplane.detach(*hook).map_err(failed),
            Action::Commit => dataplane.commit().map_err(failed),
            Action::AddRoute(route) => self.netlink.add_route(route).await.map_err(failed),
            Action::ReplaceRoute { new, .. } => self.netlink.replace_route(new).await.map_err(failed),
            Action::DeleteRoute(route) => self.netlink.delete_route(route).await.map(|_| ()).map_err(failed),
        }
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> StepError {
    StepError(Box::new(error))
}
