//! `nicpath why`: asks the kernel for its choice and the loaded programs for theirs.

use std::net::IpAddr;

use bytes::BufMut as _;
use clap::{Args, ValueEnum};
use ebpf::verdict::{Counter, Verdict};
use serde::Serialize;

use super::{Answer, Failure, Output, Paths, preflight};
use crate::{
    dataplane::{Dataplane, Explanation, Probe},
    hook::{Direction, Installed},
    inventory::{Ifindex, Inventory},
    netlink::{Netlink, RouteQuery},
    tables::{TableSpec, traced_hop},
};

#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    #[command(flatten)]
    paths: Paths,
    /// Source address of the packet
    #[arg(long, value_name = "IP")]
    src: IpAddr,
    /// Destination address of the packet
    #[arg(long, value_name = "IP")]
    dst: IpAddr,
    #[arg(long, value_enum, default_value_t = Protocol::Tcp)]
    proto: Protocol,
    /// Source port
    #[arg(long, default_value_t = 0, value_name = "N")]
    sport: u16,
    /// Destination port
    #[arg(long, default_value_t = 0, value_name = "N")]
    dport: u16,
    /// The packet arrives by this NIC; else it leaves the node
    #[arg(long = "in", value_name = "NIC")]
    input: Option<String>,
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
    Icmp,
}

/// The answer (design section 3).
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Why {
    /// As the programs count it; `unmanaged` where none runs, `unreachable` where the kernel has no route, `local` where
    /// the packet stays on the node.
    verdict: String,
    /// Rule of design section 5; absent where no program decides.
    rule: Option<u8>,
    /// The NIC the packet leaves by.
    nic: Option<String>,
    /// The next hop; absent if that is the destination itself.
    gateway: Option<IpAddr>,
    vid: Option<u16>,
    /// Why it is dropped, or a note on why it passes.
    reason: Option<String>,
    /// The NIC the kernel chose.
    kernel_nic: Option<String>,
    /// For a packet that arrives: what becomes of its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<Box<Why>>,
}

/// Everything the answer is looked up in.
struct Desk {
    netlink: Netlink,
    dataplane: Dataplane,
    inventory: Inventory,
    tables: TableSpec,
    installed: Installed,
}

pub(super) async fn run(args: &WhyArgs) -> Answer {
    preflight::check(&args.paths.bpffs, preflight::Need::Read)?;
    if args.src.is_ipv4() != args.dst.is_ipv4() {
        return Err(Failure::No(format!("{} and {} are of two families", args.src, args.dst)));
    }
    let netlink = Netlink::connect()?;
    let dataplane = Dataplane::new(&args.paths.bpffs);
    let installed = dataplane.installed()?;
    let tables = match installed {
        Installed::Current | Installed::OtherBuild => dataplane.read_spec()?,
        Installed::None | Installed::OtherAbi { .. } => TableSpec::default(),
    };
    let inventory = netlink.observe().await?;
    let desk = Desk { netlink, dataplane, inventory, tables, installed };
    let packet = Packet { src: args.src, dst: args.dst, proto: args.proto, sport: args.sport, dport: args.dport };
    let why = match &args.input {
        None => desk.departure(packet).await?,
        Some(nic) => {
            let link = desk.inventory.link_by_name(nic);
            let link = link.ok_or_else(|| Failure::No(format!("there is no NIC {nic}")))?.index;
            let reply = desk.departure(packet.reversed()).await?;
            Why { reply: Some(Box::new(reply)), ..desk.arrival(link, packet)? }
        }
    };
    match args.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&why)?),
        Output::Yaml => print!("{}", serde_saphyr::to_string(&why)?),
        Output::Table => {
            println!("{}", why.sentence(&packet));
            if let Some(reply) = &why.reply {
                println!("its answer: {}", reply.sentence(&packet.reversed()));
            }
        }
    }
    Ok(())
}

impl Desk {
    fn name(&self, link: Ifindex) -> String {
        self.inventory.link(link).map_or_else(|| format!("if{link}"), |link| link.name.clone())
    }

    fn ask(&self, link: Ifindex, direction: Direction, packet: Packet) -> Result<Option<Explanation>, Failure> {
        match self.installed {
            Installed::None | Installed::OtherAbi { .. } => Ok(None),
            Installed::Current | Installed::OtherBuild => {
                Ok(self.dataplane.explain(&Probe { link, direction, frame: &packet.frame() })?)
            }
        }
    }

    fn arrival(&self, link: Ifindex, packet: Packet) -> Result<Why, Failure> {
        let answer = self.ask(link, Direction::Ingress, packet)?;
        Ok(Why {
            verdict: answer.map_or("unmanaged", |answer| answer.verdict.name()).to_owned(),
            rule: answer.map(|answer| answer.rule),
            nic: Some(self.name(link)),
            gateway: None,
            vid: None,
            reason: answer.and_then(|answer| answer.reason).map(|reason| reason.name().to_owned()),
            kernel_nic: None,
            reply: None,
        })
    }

    async fn departure(&self, packet: Packet) -> Result<Why, Failure> {
        let local = self.inventory.addresses.iter().any(|address| address.net.addr() == packet.src);
        let query = RouteQuery { destination: packet.dst, source: local.then_some(packet.src), input: None };
        let Some(choice) = self.netlink.route_get(query).await? else {
            return Ok(Why::short("unreachable", None));
        };
        let kernel_nic = Some(self.name(choice.link));
        if self.inventory.link(choice.link).is_some_and(|link| link.loopback) {
            return Ok(Why::short("local", kernel_nic));
        }
        let Some(answer) = self.ask(choice.link, Direction::Egress, packet)? else {
            return Ok(Why { nic: kernel_nic.clone(), gateway: choice.gateway, ..Why::short("unmanaged", kernel_nic) });
        };
        let moved = answer.slot.and_then(|slot| self.tables.nics.get(&slot));
        let dropped = matches!(answer.verdict, Counter::Verdict(Verdict::Drop));
        let (nic, gateway) = match moved {
            Some(nic) => {
                let hop = traced_hop(answer.hop, packet.dst);
                (Some(self.name(nic.link)), (hop != packet.dst).then_some(hop))
            }
            None if dropped => (None, None),
            None => (kernel_nic.clone(), choice.gateway),
        };
        Ok(Why {
            verdict: answer.verdict.name().to_owned(),
            rule: Some(answer.rule),
            nic,
            gateway,
            vid: None,
            reason: answer.reason.map(|reason| reason.name().to_owned()),
            kernel_nic,
            reply: None,
        })
    }
}

impl Why {
    fn short(verdict: &str, kernel_nic: Option<String>) -> Self {
        Self {
            verdict: verdict.to_owned(),
            rule: None,
            nic: None,
            gateway: None,
            vid: None,
            reason: None,
            kernel_nic,
            reply: None,
        }
    }

    /// One sentence for a person.
    fn sentence(&self, packet: &Packet) -> String {
        let nic = self.nic.as_deref().unwrap_or("no NIC");
        let kernel = self.kernel_nic.as_deref().unwrap_or("none");
        let to = self.gateway.map_or_else(|| "directly".to_owned(), |gateway| format!("to {gateway}"));
        let what = match self.verdict.as_str() {
            "redirect" => format!("leaves by {nic} {to}: {nic} owns {}; the kernel had chosen {kernel}", packet.src),
            "owned" => format!("leaves by {nic} {to}: {nic} owns {} and is the kernel's choice", packet.src),
            "kernel" => format!("leaves by {nic} {to}, the kernel's choice (rule 3)"),
            "untouched" => format!("leaves by {nic} {to}; the programs do not look at such packets (rule 0, or off)"),
            "drop" => "is dropped".to_owned(),
            "would_redirect" => format!("leaves by {kernel}; in Enforce mode it would leave by {nic} {to}"),
            "would_drop" => format!("leaves by {kernel}; in Enforce mode it would be dropped"),
            "received" => format!("is received by {nic}"),
            "local" => "stays on the node".to_owned(),
            "unreachable" => "goes nowhere: the kernel has no route".to_owned(),
            _ => format!("leaves by {nic} {to}; no program of ours decides there"),
        };
        let reason = self.reason.as_ref().map(|reason| format!(" [{reason}]")).unwrap_or_default();
        format!("{} → {}: {what}{reason}", packet.src, packet.dst)
    }
}

/// A packet to ask about.
#[derive(Debug, Clone, Copy)]
struct Packet {
    src: IpAddr,
    dst: IpAddr,
    proto: Protocol,
    sport: u16,
    dport: u16,
}

impl Packet {
    fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src, sport: self.dport, dport: self.sport, ..self }
    }

    /// Ethernet, IP and transport header. Checksums are left out: the programs read none.
    fn frame(self) -> Vec<u8> {
        const ETH_TYPES: [u16; 2] = [0x0800, 0x86dd];
        let v4 = self.src.is_ipv4();
        let (protocol, transport) = self.transport(v4);
        let length = transport.len() as u16;
        let mut frame = Vec::new();
        frame.put_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        frame.put_u16(ETH_TYPES[usize::from(!v4)]);
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                frame.put_u16(0x4500);
                frame.put_u16(length + 20);
                frame.put_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0]);
                frame.put_slice(&src.octets());
                frame.put_slice(&dst.octets());
            }
            (src, dst) => {
                let octets = |ip: IpAddr| match ip {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                frame.put_u32(0x6000_0000);
                frame.put_u16(length);
                frame.put_slice(&[protocol, 64]);
                frame.put_slice(&octets(src));
                frame.put_slice(&octets(dst));
            }
        }
        frame.put_slice(&transport);
        frame
    }

    /// Protocol number and header.
    fn transport(self, v4: bool) -> (u8, Vec<u8>) {
        let mut ports = Vec::new();
        ports.put_u16(self.sport);
        ports.put_u16(self.dport);
        match self.proto {
            Protocol::Tcp => {
                ports.put_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
                (6, ports)
            }
            Protocol::Udp => {
                ports.put_slice(&[0, 8, 0, 0]);
                (17, ports)
            }
            // an echo request; the id is the source port
            Protocol::Icmp => {
                let [high, low] = self.sport.to_be_bytes();
                let kind = if v4 { 8 } else { 128 };
                (if v4 { 1 } else { 58 }, vec![kind, 0, 0, 0, high, low, 0, 1])
            }
        }
    }
}
