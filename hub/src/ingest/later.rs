//! A sink that is made on its own thread.

use std::cell::OnceCell;
use std::io;
use std::sync::Arc;

use super::MakeSink;
use crate::{Batch, Deadline, Ending, Losses, SessionMeta, Sink};

/// A sink that is made when it is asked for its name, which is the first thing that happens to it.
pub(super) struct Later {
    make: Arc<MakeSink>,
    made: OnceCell<Box<dyn Sink>>,
}

impl Later {
    pub fn boxed(make: &Arc<MakeSink>) -> Box<dyn Sink> {
        Box::new(Later { make: Arc::clone(make), made: OnceCell::new() })
    }

    fn sink(&self) -> &dyn Sink {
        self.made.get_or_init(|| (self.make)()).as_ref()
    }

    fn act<T: Default>(&mut self, act: impl FnOnce(&mut dyn Sink) -> T) -> T {
        self.sink();
        self.made.get_mut().map_or(T::default(), |sink| act(sink.as_mut()))
    }
}

impl Sink for Later {
    fn name(&self) -> String {
        self.sink().name()
    }

    fn init(&mut self, meta: &SessionMeta) -> io::Result<()> {
        self.act(|sink| Some(sink.init(meta))).unwrap_or(Ok(()))
    }

    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        self.act(|sink| Some(sink.write(batch))).unwrap_or(Ok(()))
    }

    fn flush(&mut self, deadline: Deadline) -> io::Result<()> {
        self.act(|sink| Some(sink.flush(deadline))).unwrap_or(Ok(()))
    }

    fn close(&mut self, ending: &Ending) {
        self.act(|sink| sink.close(ending));
    }

    fn dropped(&self) -> Losses {
        self.sink().dropped()
    }

    fn trouble(&self) -> Option<&str> {
        self.sink().trouble()
    }

    fn extent(&self) -> Option<String> {
        self.sink().extent()
    }
}
