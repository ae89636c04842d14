//! What a rank has in memory: a line for each thing that it allocates, by kind and place.

use super::Sizes;

/// What memory is for, in the order in which it is printed and recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MemoryKind {
    /// What lives within a step.
    Activations,
    /// What is summed over ranks, and over micro-steps.
    Gradients,
    /// Where gradients, and parameters that are gathered, take turns.
    Windows,
    /// What is learned, with a device's copies in halves.
    Parameters,
    /// Optimizer state and averages.
    Optimizer,
    /// Running statistics, and what nothing changes.
    Statistics,
    /// Scratch memory of the kernels.
    Workspace,
    /// Batches, losses and hits.
    Input,
    /// What messages come in, and what other ranks have where this one maps it.
    Allreduce,
    /// The copy from which a checkpoint is written.
    Checkpoint,
    /// What compression of gradients keeps and sends.
    Compression,
    /// The process without all of these: libraries, compiled kernels, data sets.
    Program,
}

impl MemoryKind {
    /// As it is printed and recorded.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// One of its lines.
#[derive(Debug, Clone)]
struct LedgerLine {
    kind: MemoryKind,
    bytes: usize,
    /// Whether it is in the memory that a device has of its own.
    on_device: bool,
    /// Of these bytes: what other ranks bring, or the process has already.
    there: usize,
}

/// What a rank has in memory at its peak.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Whether the device has memory of its own, apart from the host's.
    pub own_memory: bool,
    /// Ranks of a node for which there is one copy of the parameters, of which each updates a share.
    pub sharers: usize,
    lines: Vec<LedgerLine>,
}

impl Ledger {
    /// Nothing yet but what steps touch, of plans of these sizes.
    pub fn of_steps(own_memory: bool, sharers: usize, sizes: &Sizes) -> Ledger {
        let mut ledger = Ledger { own_memory, sharers, lines: Vec::new() };
        ledger.on_device(MemoryKind::Activations, sizes.activations);
        ledger.on_device(MemoryKind::Statistics, sizes.statistics + sizes.constants);
        ledger.on_device(MemoryKind::Workspace, sizes.touched);
        ledger.on_device(MemoryKind::Input, sizes.metrics);
        ledger
    }

    /// Memory of the device, which is the host's where it has none of its own.
    pub fn on_device(&mut self, kind: MemoryKind, bytes: usize) {
        self.lines.push(LedgerLine { kind, bytes, on_device: self.own_memory, there: 0 });
    }

    /// Memory of the host.
    pub fn on_host(&mut self, kind: MemoryKind, bytes: usize) {
        self.lines.push(LedgerLine { kind, bytes, on_device: false, there: 0 });
    }

    /// Memory that counts for every rank that touches it and is there once: so much of what was written last is
    /// brought by others.
    pub fn of_others(&mut self, there: usize) {
        if let Some(line) = self.lines.last_mut() {
            line.there = there;
        }
    }

    /// What the process has beside all else, in place of what was known of it.
    pub fn set_program(&mut self, bytes: usize) {
        self.lines.retain(|line| line.kind != MemoryKind::Program);
        self.lines.push(LedgerLine { kind: MemoryKind::Program, bytes, on_device: false, there: bytes });
    }

    fn sum(&self, of: impl Fn(&LedgerLine) -> usize) -> usize {
        self.lines.iter().map(of).sum()
    }

    /// Bytes of a kind.
    pub fn bytes(&self, kind: MemoryKind) -> usize {
        self.sum(|line| if line.kind == kind { line.bytes } else { 0 })
    }

    /// Bytes of a kind that other ranks bring, or that the process has already.
    pub fn brought(&self, kind: MemoryKind) -> usize {
        self.sum(|line| if line.kind == kind { line.there } else { 0 })
    }

    /// Bytes that a rank has at its peak: what the operating system calls the peak resident set of its process. Without
    /// what lies on a device with memory of its own.
    pub fn of_host(&self) -> usize {
        self.sum(|line| if line.on_device { 0 } else { line.bytes })
    }

    /// Bytes of these that no other rank brings: a node has so much for each of its ranks.
    pub fn its_own(&self) -> usize {
        let of_others = |line: &LedgerLine| if line.kind == MemoryKind::Program { 0 } else { line.there };
        self.of_host() - self.sum(of_others)
    }

    /// Bytes on a device with memory of its own.
    pub fn of_device(&self) -> usize {
        self.sum(|line| if line.on_device { line.bytes } else { 0 })
    }

    /// What a batch is limited by: the device's memory where it has its own, else the host's.
    pub fn limiting(&self) -> usize {
        if self.own_memory { self.of_device() } else { self.of_host() }
    }

    /// What the machine must still give once the plan is there: neither what other ranks bring nor what the process has
    /// already.
    pub fn to_come(&self) -> usize {
        self.of_host() - self.sum(|line| line.there)
    }
}
