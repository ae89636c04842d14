//! What carries out the transfers of a script, made of collectives for what lies where.

use std::rc::Rc;

use super::averaging::Averaging;
use super::gpu_direct;
use super::recipe::Recipe;
use super::sharing::{Gradients, Travelling, as_memory, codes_on_device};
use crate::collective::{Collective, Operation, Route, Several};
use crate::comm::{Region, World};
use crate::config::{AllreduceKind, Compression, Config, Wire};
use crate::device::{Device, Memory};
use crate::error::{Error, Result};
use crate::fusion::compress::{self, Account, At, Compressed};
use crate::fusion::{
    Carriers, EdgeMemory, Edges, Exchanges, Fusion, Line, Link, Norms, Notes, OnDevice, ReduceAt, Service,
    Staging, Tail, Words,
};
use crate::plan::{Area, Plan, Program, Script, TAIL, Transfer};
use crate::strategy::Owners;

/// What transfers of the script move.
pub struct Places<'a> {
    /// Who updates what.
    pub owners: Owners,
    /// Whether the ranks of a node have the parameters in common.
    pub in_common: bool,
    /// Activations, of which some go between stages.
    pub arena: &'a Memory,
    /// Where gradients are averaged.
    pub gradients: &'a Gradients,
    /// Where parameters go between ranks: what does.
    pub travelling: Option<&'a Travelling>,
    /// Where parameters are gathered before they are read: where to.
    pub windows: Option<&'a Travelling>,
}

/// Where updates are asynchronous: what goes beside gradients and parameters.
pub struct Pushes {
    /// Between ranks and servers.
    pub notes: Notes,
    /// At a server: what carries both.
    pub service: Option<Service>,
}

/// What carriers are made of. All of it is collective, and fails on every rank alike.
pub struct Carrying<'a> {
    /// All ranks of the job.
    pub job: &'a World,
    /// Those that have the same parameters, or push to those that have.
    pub world: &'a World,
    /// Those that compute, as this rank does; or those that serve.
    pub peers: &'a World,
    /// Where layers are split: those that have the same parts of them.
    pub alike: Option<&'a World>,
    /// Of the run.
    pub config: &'a Config,
    /// What was decided beforehand.
    pub averaging: &'a Averaging,
    /// The training plan.
    pub plan: &'a Plan,
    /// What this rank drives.
    pub device: &'a dyn Device,
}

impl Carrying<'_> {
    /// What carries out the script's transfers. Collective.
    ///
    /// # Errors
    /// The same on every rank: what cannot be allocated, or does not go together.
    pub fn fusion(
        &self,
        script: &Script,
        program: Option<&Program>,
        places: &Places,
    ) -> Result<(Fusion, Option<Account>)> {
        let Carrying { job, world, device, .. } = *self;
        let (reduce, compression) = self.reduction(places)?;
        let apart = places.owners.are_apart();
        let at = self.reduced_at(places);
        let staged = matches!(at, ReduceAt::Staged(_)).then(|| end(&places.gradients.on_host));
        let tail = world.agree(Tail::new(device, end(&places.gradients.averaged), staged, job.size()))?;
        let operation = if apart { "reduce-scatter" } else { "allreduce" };
        let sums = Line::new(Words { what: "bucket", operation }, reduce, at);
        let mixes = self.mixes(script, places)?;
        let cut = script.mesh.divides_parameters();
        let tail_line = if apart || cut || script.relaxed { Some(self.tail(places)?) } else { None };
        let into_windows = places.windows.map(|windows| self.gathers(windows)).transpose()?;
        let parameters = if apart && into_windows.is_none() { Some(self.parameters(places)?) } else { None };
        let gathers = script.transfers.iter().any(|transfer| transfer.area == Area::Norms);
        let told = if cut { job } else { world };
        let norms = if gathers { Some(told.agree(Norms::new(told))?) } else { None };
        let exchanges = program.map_or(Ok(None), |program| exchanges(self.peers, device, program))?;
        let edges = match script.mesh.is_cut() {
            true => Some(edges(job, device, places.arena, Link::of_script(script))?),
            false => trades(job, device, places.arena, self.plan)?,
        };
        let carriers = Carriers {
            sums,
            tail: tail_line,
            parameters,
            gathers: into_windows,
            mixes,
            norms,
            exchanges,
            edges,
        };
        let fusion = world.agree(Fusion::new(carriers, script, !self.config.buckets.no_overlap))?;
        Ok((fusion.with_tail(tail).with_rate(self.averaging.rate(world)), compression))
    }

    /// The same where owners take what each rank pushes as it comes. Collective.
    ///
    /// # Errors
    /// The same on every rank: what cannot be allocated.
    pub fn asynchronous(&self, script: &Script, places: &Places) -> Result<(Fusion, Pushes)> {
        let Carrying { world, .. } = *self;
        let gradients = &places.gradients.region;
        let Travelling { region, on_device } = self.travelling(places)?;
        let words = Words { what: "bucket", operation: "push" };
        let sums = self.star(Operation::ReduceScatter, words, gradients, || self.reduced_at(places))?;
        let words = Words { what: "parameters of bucket", operation: "pull" };
        let back = || self.staging(on_device, as_memory(region));
        let mut parameters = self.star(Operation::Allgather, words, region, back)?;
        let notes = Notes::new(world)?;
        if places.owners.serves(world.rank()) {
            let service = world.agree(Service::new(sums, parameters, script))?;
            return Ok((Fusion::serving(), Pushes { notes, service: Some(service) }));
        }
        let made = sums.into_iter().next().zip(parameters.pop()).ok_or_else(|| Error::internal("no lines"));
        let made = made.and_then(|(sums, parameters)| {
            let parameters = Some(parameters);
            let carriers = Carriers { parameters, ..Carriers::of(sums) };
            Fusion::new(carriers, script, !self.config.buckets.no_overlap)
        });
        Ok((world.agree(made)?, Pushes { notes, service: None }))
    }

    /// One line to all owners; at an owner one to each rank that computes. Collective.
    fn star(
        &self,
        operation: Operation,
        words: Words,
        region: &Rc<Region>,
        at: impl Fn() -> ReduceAt,
    ) -> Result<Vec<Line>> {
        let world = self.world;
        let computing = self.config.strategy.computing(world.size());
        let collectives = match world.rank() < computing {
            true => vec![operation.make(Route::Star, Wire::F32, world, region)?],
            false => operation.with_each(computing, world, region)?,
        };
        Ok(collectives.into_iter().map(|collective| Line::new(words, collective, at())).collect())
    }

    /// What adds up the step's own numbers where sums of gradients do not come to all in every step. Collective.
    fn tail(&self, places: &Places) -> Result<Line> {
        let last = self.plan.bucket_bytes().last().copied().unwrap_or(0);
        let world = if self.config.pipeline.is_some() { self.job } else { self.world };
        let recipe = self.averaging.numbers(places.owners.are_apart(), last);
        let tail = recipe.build(&self.averaging.selection, world, &places.gradients.region)?;
        let at = self.staging(&places.gradients.averaged, places.gradients.on_host.clone());
        Ok(Line::new(Words { what: "the step's sums", operation: "allreduce" }, tail, at))
    }

    /// Where owners are apart: what brings new parameters. Collective.
    fn parameters(&self, places: &Places) -> Result<Line> {
        let Travelling { region, on_device } = self.travelling(places)?;
        let recipe = self.averaging.parameters(places.in_common);
        let parameters = recipe.build(&self.averaging.selection, self.world, region)?;
        let at = self.staging(on_device, as_memory(region));
        Ok(Line::new(Words { what: "parameters of bucket", operation: "allgather" }, parameters, at))
    }

    /// What gathers parameters before they are read. Collective.
    fn gathers(&self, Travelling { region, on_device }: &Travelling) -> Result<Line> {
        let gather = Recipe::Collect(Route::Auto).build(&self.averaging.selection, self.world, region)?;
        let words = Words { what: "parameters of window", operation: "allgather" };
        Ok(Line::new(words, gather, self.staging(on_device, as_memory(region))))
    }

    fn travelling<'p>(&self, places: &'p Places) -> Result<&'p Travelling> {
        let travelling = places.travelling.ok_or_else(|| Error::internal("parameters that never travel"));
        self.world.agree(travelling)
    }

    /// In a gossip: what exchanges parameters with the rank at each distance that the script has. Collective.
    fn mixes(&self, script: &Script, places: &Places) -> Result<Vec<Line>> {
        let mut distances: Vec<usize> = script.transfers.iter().filter_map(Transfer::distance).collect();
        distances.dedup();
        let line = |distance| {
            let Travelling { region, on_device } = self.travelling(places)?;
            let pair = Recipe::Shift(distance).build(&self.averaging.selection, self.world, region)?;
            let at = self.staging(on_device, as_memory(region));
            let words = Words { what: "parameters of bucket", operation: "exchange" };
            Ok(Line::new(words, pair, at).behind(region.bytes() / 2))
        };
        distances.into_iter().map(line).collect()
    }

    fn staging(&self, device: &Memory, host: Memory) -> ReduceAt {
        match self.device.is_host() {
            true => ReduceAt::InPlace,
            false => ReduceAt::Staged(Staging { device: device.clone(), host }),
        }
    }

    fn reduced_at(&self, places: &Places) -> ReduceAt {
        let Carrying { world, device, .. } = *self;
        match self.averaging.selection.kind() {
            AllreduceKind::NCCL => ReduceAt::Device,
            AllreduceKind::IPC => ReduceAt::InPlace,
            _ if self.averaging.on_device => ReduceAt::InPlace,
            _ if codes_on_device(self.config, world, device) => ReduceAt::Device,
            // A rank alone has nobody to tell, but may still compress.
            _ if !device.is_host() && (world.size() > 1 || self.config.compress.is_some()) => {
                ReduceAt::Staged(Staging {
                    device: places.gradients.averaged.clone(),
                    host: places.gradients.on_host.clone(),
                })
            }
            _ if !device.is_host() => ReduceAt::Device,
            _ => ReduceAt::InPlace,
        }
    }

    /// What sums gradients over ranks, and what compression keeps account of where there is any.
    fn reduction(&self, places: &Places) -> Result<(Box<dyn Collective>, Option<Account>)> {
        let (world, selection) = (self.world, &self.averaging.selection);
        let kind = selection.kind();
        if kind == AllreduceKind::NCCL {
            let sums = OnDevice::new(world, kind.name(), self.device, &places.gradients.averaged)?;
            return Ok((Box::new(sums), None));
        }
        if kind == AllreduceKind::IPC {
            let sums = gpu_direct::over_gpus(
                world,
                self.config.wire,
                self.device,
                &places.gradients.averaged,
                &places.gradients.region,
            );
            return Ok((Box::new(sums?), None));
        }
        if self.averaging.on_device {
            let region = gpu_direct::region(&places.gradients.averaged);
            return Ok((world.agree(selection.build(world, &region))?, None));
        }
        let (apart, region) = (places.owners.are_apart(), &places.gradients.region);
        let Some(scheme) = self.config.compress.filter(|_| !apart) else {
            let sums = world.agree(self.averaging.sums(apart).build(selection, world, region))?;
            return Ok((if apart { sums } else { self.beside_split(sums, places)? }, None));
        };
        let relaxed = self.config.strategy.is_relaxed();
        let scheme = match scheme {
            // A gradient is a rank's share of the mean, its way from the anchor is not.
            Compression::TwoBit { threshold } if relaxed => {
                Compression::TwoBit { threshold: threshold * world.size() as f32 }
            }
            scheme => scheme,
        };
        let at = match compress::code(scheme, world.size(), self.device).filter(|_| !relaxed) {
            Some(code) => At::Device(code, &places.gradients.averaged, as_memory),
            None => At::Host(&places.gradients.on_host),
        };
        let (plan, device, ranks) = (self.plan, self.device, world.size());
        let how = compress::How { scheme, with_tail: !relaxed, plan, device, ranks };
        let compressed = world.agree(Compressed::new(&how, selection, world, at))?;
        let account = compressed.account();
        Ok((Box::new(compressed), Some(account)))
    }

    /// These sums, and where layers are split those of their gradients, between the ranks with the same parts: by
    /// messages, since those of a node may have others.
    fn beside_split(&self, sums: Box<dyn Collective>, places: &Places) -> Result<Box<dyn Collective>> {
        let Some(alike) = self.alike else { return Ok(sums) };
        let region = &places.gradients.region;
        let ring = Recipe::Sum(AllreduceKind::RING, self.config.wire);
        let split = self.job.agree(ring.build(&self.averaging.selection, alike, region))?;
        Ok(Box::new(Several::divided(self.plan.split / 4, split, sums)))
    }
}

/// What a program exchanges between its steps, if anything: between ranks of this world. Collective.
///
/// # Errors
/// The same on every rank: memory lacks.
pub fn exchanges(world: &World, device: &dyn Device, program: &Program) -> Result<Option<Exchanges>> {
    let some = (!program.exchanges.is_empty()).then(|| program.exchanges.clone());
    some.map(|exchanges| Exchanges::new(world, device, exchanges)).transpose()
}

/// What carries messages between stages out of an arena and into it. Collective.
///
/// # Errors
/// The same on every rank: memory lacks.
pub fn edges(job: &World, device: &dyn Device, arena: &Memory, links: Vec<Link>) -> Result<Edges> {
    let memory = match device.is_host() {
        true => Ok(EdgeMemory::InPlace(gpu_direct::region(arena))),
        false => Region::private(links.iter().map(|link| link.bytes.len()).sum())
            .map(|host| EdgeMemory::Staged { arena: arena.clone(), host: Rc::new(host) }),
    };
    let edges = Edges::new(job, links, job.agree(memory)?);
    job.agree(edges)
}

/// What carries rows of images between the ranks of a group behind the steps of a plan, if any: out of its arena and
/// into it. Collective.
///
/// # Errors
/// The same on every rank: memory lacks.
pub fn trades(job: &World, device: &dyn Device, arena: &Memory, plan: &Plan) -> Result<Option<Edges>> {
    let Some(rows) = plan.graph.rows else { return Ok(None) };
    let first = job.rank() / rows.parts * rows.parts;
    let (mut links, mut trades) = (Vec::new(), Vec::new());
    for trading in plan.trades() {
        let start = links.len();
        links.extend(Link::of_trade(&trading, |place| first + place));
        trades.push(start..links.len());
    }
    Ok(Some(edges(job, device, arena, links)?.in_trades(trades)))
}

/// The tail of gradients.
fn end(gradients: &Memory) -> Memory {
    gradients.slice(gradients.bytes() - TAIL, TAIL)
}
