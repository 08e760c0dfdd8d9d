//! The two faces of every call: one that waits, and one that event loops await.

use std::convert::Infallible;

use pyo3::prelude::*;

/// Writes methods once for a class that waits and its twin for event loops.
///
/// A body reads its arguments and ends with the future of a core result, which becomes the type of each face. Each class
/// has a method `enter`, called first. `IS_ASYNC` tells which of the two it is.
macro_rules! twins {
    (impl $sync:ident, $asynchronous:ident; $($(#[$meta:meta])*
        fn $name:ident($py:ident, $this:ident $(, $argument:ident: $type:ty)* $(, **$options:ident)? $(,)?)
            -> $sync_type:ty, $async_type:ty $body:block
    )+) => {
        #[pyo3::pymethods]
        impl $sync {$(
            $(#[$meta])*
            #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
            fn $name(slf: &pyo3::Bound<'_, Self>, $py: pyo3::Python<'_> $(, $argument: $type)* $(, $options: Option<&pyo3::Bound<'_, pyo3::types::PyDict>>)?) -> pyo3::PyResult<$sync_type> {
                #[allow(dead_code, reason = "few bodies ask")]
                const IS_ASYNC: bool = false;
                let $this = slf.get();
                $this.enter($py)?;
                let future = $body;
                crate::runtime::wait($py, future).map(<$sync_type>::from)
            }
        )+}

        #[pyo3::pymethods]
        impl $asynchronous {$(
            $(#[$meta])*
            #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
            fn $name<'py>(slf: &pyo3::Bound<'py, Self>, $py: pyo3::Python<'py> $(, $argument: $type)* $(, $options: Option<&pyo3::Bound<'_, pyo3::types::PyDict>>)?) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::PyAny>> {
                #[allow(dead_code, reason = "few bodies ask")]
                const IS_ASYNC: bool = true;
                let $this = slf.get();
                $this.enter($py)?;
                let future = $body;
                crate::runtime::spawn($py, async move { future.await.map(<$async_type>::from) })
            }
        )+}
    };
}

pub(crate) use twins;

/// What a call answers that answers nothing: None for those who await it, where `()` would be an empty tuple.
pub(crate) struct Nothing;

impl From<()> for Nothing {
    fn from((): ()) -> Self {
        Self
    }
}

impl<'py> IntoPyObject<'py> for Nothing {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(py.None().into_bound(py))
    }
}
