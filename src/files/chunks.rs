//! Chunks of files that are kept in memory for all threads that read.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Which file or array, and which of its chunks.
type ChunkKey = (u64, usize);

/// The chunks that were used last. Threads that want the same one wait for the first of them, which makes it.
pub struct ChunkCache {
    /// How many are kept.
    most: AtomicUsize,
    kept: Mutex<KeptChunks>,
}

#[derive(Default)]
struct KeptChunks {
    /// Each with when it was used last.
    places: HashMap<ChunkKey, (u64, Arc<RwLock<KeptChunk>>)>,
    /// By when they were used last.
    order: BTreeMap<u64, ChunkKey>,
    /// How often any was used.
    uses: u64,
}

#[derive(Default)]
struct KeptChunk {
    bytes: Vec<u8>,
    /// What was said of it by who made it; `None` before.
    made: Option<bool>,
}

impl Default for ChunkCache {
    fn default() -> ChunkCache {
        ChunkCache::new(1)
    }
}

impl ChunkCache {
    /// One that keeps so many chunks.
    pub fn new(most: usize) -> ChunkCache {
        ChunkCache { most: AtomicUsize::new(most), kept: Mutex::default() }
    }

    /// How many chunks are kept.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Keeps so many from now on.
    pub fn keep(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Forgets what is in the chunks that no thread reads. Their memory is there for the next ones.
    pub fn forget(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in kept.places.values_mut().filter_map(|(_, chunk)| Arc::get_mut(chunk)) {
            chunk.get_mut().unwrap_or_else(PoisonError::into_inner).made = None;
        }
    }

    /// Reads a chunk, which is made first where it is not kept; who makes it says something of it.
    ///
    /// # Errors
    /// That it cannot be made.
    pub fn with<T, E>(
        &self,
        key: ChunkKey,
        make: impl FnOnce(&mut Vec<u8>) -> Result<bool, E>,
        read: impl FnOnce(&[u8], bool) -> T,
    ) -> Result<T, E> {
        let place = self.place(key);
        let look = || place.read().unwrap_or_else(PoisonError::into_inner);
        if look().made.is_none() {
            let mut chunk = place.write().unwrap_or_else(PoisonError::into_inner);
            if chunk.made.is_none() {
                let made = make(&mut chunk.bytes)?;
                chunk.made = Some(made);
            }
        }
        let chunk = look();
        Ok(read(&chunk.bytes, chunk.made == Some(true)))
    }

    /// Where a chunk is or is to be. It takes the memory of one that goes, where no other thread reads that any more:
    /// fresh memory costs as much as reading.
    fn place(&self, key: ChunkKey) -> Arc<RwLock<KeptChunk>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut *kept;
        kept.uses += 1;
        let place = match kept.places.remove(&key) {
            Some((used, place)) => {
                kept.order.remove(&used);
                place
            }
            None => {
                let mut bytes = Vec::new();
                while kept.places.len() >= self.most().max(1) {
                    let Some((_, oldest)) = kept.order.pop_first() else { break };
                    let gone = kept.places.remove(&oldest).and_then(|(_, chunk)| Arc::into_inner(chunk));
                    bytes = gone.map_or(bytes, |of| of.into_inner().unwrap_or_default().bytes);
                }
                Arc::new(RwLock::new(KeptChunk { bytes, made: None }))
            }
        };
        kept.order.insert(kept.uses, key);
        kept.places.insert(key, (kept.uses, place.clone()));
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_that_were_used_last_are_kept_and_one_that_cannot_be_made_is_tried_again() {
        let cache = ChunkCache::new(2);
        let mut made = Vec::new();
        for chunk in [0, 1, 0, 2, 0, 1] {
            let make = |bytes: &mut Vec<u8>| {
                bytes.clear();
                bytes.push(chunk as u8);
                made.push(chunk);
                Ok::<bool, ()>(chunk == 2)
            };
            let read = cache.with((7, chunk), make, |bytes, said| (bytes.to_vec(), said));
            assert_eq!(read, Ok((vec![chunk as u8], chunk == 2)));
        }
        assert_eq!(made, [0, 1, 2, 1]);
        assert_eq!(cache.with((7, 3), |_| Err("no"), |_, _| ()), Err("no"));
        assert_eq!(cache.with((7, 3), |_| Ok::<bool, ()>(true), |_, said| said), Ok(true));
    }
}
