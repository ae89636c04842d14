//! Batches read ahead of their use.
//!
//! One thread goes through the batches in order and fills each with a pool of workers, an image at a time; two filled
//! batches wait at most. Whoever takes one gives an old one back, so that nothing is allocated after the start. What is in a
//! batch is a function of its number: whoever asks for another than the next one gets it, at the price of a restart.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::prelude::{IntoParallelRefIterator, IntoParallelRefMutIterator};
use rayon::slice::ParallelSliceMut;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::sample::{Samples, Scratch};
use crate::error::{Error, Result};

/// The label of a place in a batch that holds no image: it counts neither in loss nor in accuracy.
pub const PADDING: i32 = -1;

/// Batches that are read and wait, or are being read.
pub const AHEAD: usize = 2;

/// So many images in a row that cannot be read are no accident.
const HOPELESS: usize = 64;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// By whom batches are read, and what of images that cannot be.
#[derive(Clone)]
pub struct Reading {
    /// `None`: whoever asks reads.
    pool: Option<Arc<ThreadPool>>,
    strict: bool,
}

impl Reading {
    /// # Errors
    /// `Environment` when the system gives no threads.
    pub fn new(threads: usize, strict: bool) -> Result<Reading> {
        let pool =
            || ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("loader-{i}")).build();
        let pool = (threads > 0)
            .then(pool)
            .transpose()
            .map_err(|error| Error::environment(format!("--loader-threads {threads}: {error}; use fewer")))?;
        Ok(Reading { pool: pool.map(Arc::new), strict })
    }

    /// By whoever asks.
    pub fn inline() -> Reading {
        Reading { pool: None, strict: false }
    }
}

/// Which images a batch consists of.
pub trait Order: Clone + Send + 'static {
    /// The epoch and the images of a batch, fewer than a batch has room for at the end; `None` behind the last one.
    fn images(&mut self, batch: u64) -> Option<(usize, Vec<u32>)>;
}

struct Batch {
    number: u64,
    images: Vec<f32>,
    labels: Vec<i32>,
    /// Places that belong to images, readable or not.
    count: usize,
    read: Result<()>,
}

struct Ahead {
    ready: Receiver<Batch>,
    empty: Option<Sender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

/// Fills batches of one set in one order.
pub struct Reader<O> {
    samples: Samples,
    order: O,
    reading: Reading,
    bad: Arc<Bad>,
    ahead: Option<Ahead>,
}

impl<O: Order> Reader<O> {
    pub fn new(samples: Samples, order: O, reading: Reading) -> Reader<O> {
        Reader { samples, order, reading, bad: Arc::default(), ahead: None }
    }

    /// Fills a batch; places without a readable image are zeros with the label `PADDING`. Returns how many places belong to
    /// images, and how many of those could not be read.
    ///
    /// # Errors
    /// `Data` for an image that cannot be read, where those are not to be skipped, and when nothing can be read any more.
    pub fn fill(
        &mut self,
        number: u64,
        images: &mut Vec<f32>,
        labels: &mut Vec<i32>,
    ) -> Result<(usize, usize)> {
        let count = match self.reading.pool {
            None => {
                let (epoch, indices) = self.order.images(number).unwrap_or_default();
                let places = indices.iter().zip(images.chunks_exact_mut(self.size())).zip(&mut *labels);
                let job = self.job();
                places.for_each(|((&index, image), label)| *label = job.read(epoch, index as usize, image));
                clear(indices.len(), self.size(), images, labels);
                self.bad.outcome(self.reading.strict)?;
                indices.len()
            }
            Some(_) => self.take(number, images, labels)?,
        };
        let unread = labels[..count].iter().filter(|&&label| label == PADDING).count();
        Ok((count, unread))
    }

    /// Goes by another order from now on.
    pub fn reorder(&mut self, order: O) {
        self.rest();
        self.order = order;
    }

    /// Lets go of what was read ahead.
    pub fn rest(&mut self) {
        self.ahead = None;
    }

    fn take(&mut self, number: u64, images: &mut Vec<f32>, labels: &mut Vec<i32>) -> Result<usize> {
        for _ in 0..2 {
            let ahead = match self.ahead.take() {
                Some(ahead) => ahead,
                None => self.start(number, images.len(), labels.len())?,
            };
            let Ok(mut batch) = ahead.ready.recv() else { continue };
            if batch.number != number {
                continue;
            }
            std::mem::swap(images, &mut batch.images);
            std::mem::swap(labels, &mut batch.labels);
            let (count, read) = (batch.count, std::mem::replace(&mut batch.read, Ok(())));
            // The thread has ended where there is nothing more to read.
            let _ = ahead.empty.as_ref().map(|empty| empty.send(batch));
            self.ahead = Some(ahead);
            return read.map(|()| count);
        }
        Err(Error::internal("the thread that reads images ended"))
    }

    fn start(&self, first: u64, values: usize, places: usize) -> Result<Ahead> {
        let (give, ready) = channel();
        let (empty, waiting) = channel::<Batch>();
        for _ in 0..AHEAD {
            let (images, labels) = (vec![0.0; values], vec![0; places]);
            // The receiver is in this function.
            let _ = empty.send(Batch { number: 0, images, labels, count: 0, read: Ok(()) });
        }
        let (mut order, job, reading, size) =
            (self.order.clone(), self.job(), self.reading.clone(), self.size());
        let work = move || {
            let Some(pool) = reading.pool else { return };
            for number in first.. {
                let Some((epoch, indices)) = order.images(number) else { return };
                let Ok(mut batch) = waiting.recv() else { return };
                (batch.number, batch.count) = (number, indices.len());
                let images = batch.images.par_chunks_exact_mut(size);
                let places = images.zip(batch.labels.par_iter_mut()).zip(indices.par_iter()).with_max_len(1);
                pool.install(|| {
                    places
                        .for_each(|((image, label), &index)| *label = job.read(epoch, index as usize, image));
                });
                clear(batch.count, size, &mut batch.images, &mut batch.labels);
                batch.read = job.bad.outcome(reading.strict);
                if give.send(batch).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("loader".into()).spawn(work);
        let thread =
            thread.map_err(|error| Error::environment(format!("no thread to read images: {error}")))?;
        Ok(Ahead { ready, empty: Some(empty), thread: Some(thread) })
    }

    fn size(&self) -> usize {
        self.samples.sample().iter().product()
    }

    fn job(&self) -> Job {
        Job { samples: self.samples.clone(), bad: self.bad.clone() }
    }
}

/// Zeros where there is no image.
fn clear(count: usize, size: usize, images: &mut [f32], labels: &mut [i32]) {
    images[count * size..].fill(0.0);
    labels[count..].fill(PADDING);
}

impl Drop for Ahead {
    /// The thread ends as soon as it wants an empty batch, or wants to give a full one away.
    fn drop(&mut self) {
        self.empty = None;
        while self.ready.try_recv().is_ok() {}
        if let Some(thread) = self.thread.take() {
            // A panic of it has been told by the missing batch.
            let _ = thread.join();
        }
    }
}

struct Job {
    samples: Samples,
    bad: Arc<Bad>,
}

impl Job {
    fn read(&self, epoch: usize, index: usize, image: &mut [f32]) -> i32 {
        let read = SCRATCH.with_borrow_mut(|scratch| self.samples.read(epoch, index, image, scratch));
        match read {
            Ok(label) => {
                self.bad.in_a_row.store(0, Ordering::Relaxed);
                label
            }
            Err(error) => {
                image.fill(0.0);
                self.bad.note(index % self.samples.set().len(), error);
                PADDING
            }
        }
    }
}

/// What could not be read so far.
#[derive(Default)]
struct Bad {
    images: Mutex<HashSet<usize>>,
    /// Since an image could be read.
    in_a_row: AtomicUsize,
    last: Mutex<Option<Error>>,
}

impl Bad {
    /// Says it, once for each image.
    fn note(&self, index: usize, error: Error) {
        self.in_a_row.fetch_add(1, Ordering::Relaxed);
        if self.images.lock().unwrap_or_else(PoisonError::into_inner).insert(index) {
            log::warn!("skipped: {error}");
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(error);
    }

    fn outcome(&self, strict: bool) -> Result<()> {
        let in_a_row = self.in_a_row.load(Ordering::Relaxed);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last.take() {
            Some(error) if strict => Err(error),
            Some(error) if in_a_row >= HOPELESS => {
                Err(error.context(format!("{in_a_row} images in a row could not be read, the last of them")))
            }
            _ => Ok(()),
        }
    }
}
