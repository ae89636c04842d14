//! Who adds up gradients over ranks, how, and where: three questions behind one word of the command line.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::Serialize;

/// How gradients are added up over ranks, as `--allreduce` says it in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum AllreduceKind {
    /// For each bucket the one that is expected to be fastest.
    Auto,
    /// Messages between ranks.
    Messages(Pattern),
    /// In memory that a node shares, and by rings between nodes, one for each local rank.
    Hierarchical(NodeMemory),
    /// In place in memory that the ranks of one node share.
    Shm,
    /// A library does all of it.
    Vendor(Vendor),
}

/// Who sends what to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Each to the next.
    Ring,
    /// Halves, and halves of halves, to partners at ever smaller distances, and back.
    HalvingDoubling,
    /// The whole to partners at distances 1, 2, 4, ….
    RecursiveDoubling,
    /// Rings along the rows and columns of a rectangle.
    Torus,
}

/// Where the ranks of a node reach each other's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeMemory {
    /// In shared memory of the host.
    Host,
    /// In the memory of their GPUs.
    Gpus,
}

/// Whose library it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// That of the MPI library in use.
    Mpi,
    /// NVIDIA's, between GPUs.
    Nccl,
}

impl AllreduceKind {
    /// `ring`.
    pub const RING: AllreduceKind = AllreduceKind::Messages(Pattern::Ring);
    /// `halving-doubling`.
    pub const HALVING_DOUBLING: AllreduceKind = AllreduceKind::Messages(Pattern::HalvingDoubling);
    /// `recursive-doubling`.
    pub const RECURSIVE_DOUBLING: AllreduceKind = AllreduceKind::Messages(Pattern::RecursiveDoubling);
    /// `torus`.
    pub const TORUS: AllreduceKind = AllreduceKind::Messages(Pattern::Torus);
    /// `hierarchical`.
    pub const HIERARCHICAL: AllreduceKind = AllreduceKind::Hierarchical(NodeMemory::Host);
    /// `mpi`.
    pub const MPI: AllreduceKind = AllreduceKind::Vendor(Vendor::Mpi);
    /// `ipc`.
    pub const IPC: AllreduceKind = AllreduceKind::Hierarchical(NodeMemory::Gpus);
    /// `nccl`.
    pub const NCCL: AllreduceKind = AllreduceKind::Vendor(Vendor::Nccl);

    /// As the flag has it.
    pub fn name(self) -> &'static str {
        match self {
            AllreduceKind::Auto => "auto",
            AllreduceKind::Messages(Pattern::Ring) => "ring",
            AllreduceKind::Messages(Pattern::HalvingDoubling) => "halving-doubling",
            AllreduceKind::Messages(Pattern::RecursiveDoubling) => "recursive-doubling",
            AllreduceKind::Messages(Pattern::Torus) => "torus",
            AllreduceKind::Hierarchical(NodeMemory::Host) => "hierarchical",
            AllreduceKind::Shm => "shm",
            AllreduceKind::Vendor(Vendor::Mpi) => "mpi",
            AllreduceKind::Hierarchical(NodeMemory::Gpus) => "ipc",
            AllreduceKind::Vendor(Vendor::Nccl) => "nccl",
        }
    }

    /// Whether it adds up numbers of GPUs that never come to the host, or come there as sums of a node.
    pub fn is_between_gpus(self) -> bool {
        matches!(self, AllreduceKind::IPC | AllreduceKind::NCCL)
    }

    fn help(self) -> &'static str {
        match self {
            AllreduceKind::Auto => {
                "For each bucket the one that is expected to be fastest, by what --tuning says of the machine"
            }
            AllreduceKind::Messages(Pattern::Ring) => "Chunked, pipelined ring over MPI messages",
            AllreduceKind::Messages(Pattern::HalvingDoubling) => {
                "Recursive halving and doubling: as few bytes as the ring in fewer steps"
            }
            AllreduceKind::Messages(Pattern::RecursiveDoubling) => {
                "Recursive doubling: fewest steps, for small messages"
            }
            AllreduceKind::Messages(Pattern::Torus) => {
                "Rings along the rows and columns of a rectangle of ranks"
            }
            AllreduceKind::Hierarchical(NodeMemory::Host) => {
                "Added up in shared memory within a node, by rings between nodes, one for each local rank"
            }
            AllreduceKind::Shm => "In place in memory that the ranks of one node share",
            AllreduceKind::Vendor(Vendor::Mpi) => "The MPI library's own MPI_Iallreduce",
            AllreduceKind::Hierarchical(NodeMemory::Gpus) => {
                "By the GPUs of a node in each other's memory (CUDA IPC), by rings between nodes; auto takes it where it works"
            }
            AllreduceKind::Vendor(Vendor::Nccl) => {
                "Between GPUs, past the host, by NVIDIA's NCCL: with --device cuda and a GPU for each rank"
            }
        }
    }
}

impl ValueEnum for AllreduceKind {
    fn value_variants<'a>() -> &'a [AllreduceKind] {
        &[
            AllreduceKind::Auto,
            AllreduceKind::RING,
            AllreduceKind::HALVING_DOUBLING,
            AllreduceKind::RECURSIVE_DOUBLING,
            AllreduceKind::TORUS,
            AllreduceKind::HIERARCHICAL,
            AllreduceKind::Shm,
            AllreduceKind::MPI,
            AllreduceKind::IPC,
            AllreduceKind::NCCL,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let value = PossibleValue::new(self.name()).help(self.help());
        Some(match *self {
            AllreduceKind::HALVING_DOUBLING => value.alias("halving"),
            AllreduceKind::RECURSIVE_DOUBLING => value.alias("tree"),
            AllreduceKind::MPI => value.alias("vendor"),
            _ => value,
        })
    }
}

impl From<AllreduceKind> for &'static str {
    fn from(kind: AllreduceKind) -> &'static str {
        kind.name()
    }
}
