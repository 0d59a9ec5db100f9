//! Tensors over device memory for other programs: DLPack's `DLManagedTensor` (dlpack.h, version 0.8), which PyTorch, CuPy
//! and JAX take without a copy. The deleter is native code, so that a tensor may outlive the interpreter that made it.

use std::ffi::c_void;
use std::sync::Arc;

use wattlock_cuda::direct::{Memory, Why};

use crate::failure::Failure;

/// `kDLCUDA`.
const DEVICE_CUDA: i32 = 2;
/// More dimensions than any tensor has.
const DIMENSIONS_MOST: usize = 64;

/// `DLTensor`, with its `DLDevice` and `DLDataType` in place.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, and behind it what it points at.
#[repr(C)]
pub struct ManagedTensor {
    tensor: Tensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    memory: Option<Arc<Memory>>,
}

/// DLPack's deleter.
///
/// # Safety
/// Called once, with what [`tensor`] made.
unsafe extern "C" fn delete(managed: *mut ManagedTensor) {
    // A panic must not reach the caller.
    _ = std::panic::catch_unwind(|| {
        // SAFETY: made by `Box::into_raw` below, and given back once.
        drop(unsafe { Box::from_raw(managed) });
    });
}

/// A tensor over a part of the memory.
///
/// # Errors
/// [`Failure::Refused`]: it does not lie in the memory, or its elements are not whole bytes and aligned.
pub(crate) fn tensor(
    memory: &Arc<Memory>,
    offset: u64,
    (code, bits): (u8, u8),
    shape: &[i64],
) -> Result<*mut ManagedTensor, Failure> {
    let element = u64::from(bits) / 8;
    if bits == 0 || !bits.is_multiple_of(8) || !element.is_power_of_two() {
        return Err(Failure::field("bits", Why::Length));
    }
    if shape.len() > DIMENSIONS_MOST || shape.iter().any(|len| *len < 0) {
        return Err(Failure::field("shape", Why::Length));
    }
    let whole = shape.iter().try_fold(element, |bytes, len| bytes.checked_mul(*len as u64));
    let end = whole.and_then(|bytes| bytes.checked_add(offset)).ok_or(Failure::field("shape", Why::Large))?;
    if end > memory.bytes() as u64 {
        return Err(Failure::field("memory", Why::Short(end)));
    }
    let at = memory.at() + offset;
    if !at.is_multiple_of(element) {
        return Err(Failure::field("offset", Why::Misaligned(element)));
    }
    // Strides count elements; C-contiguous.
    let mut strides = vec![1_i64; shape.len()];
    for index in (1..shape.len()).rev() {
        strides[index - 1] = strides[index].saturating_mul(shape[index].max(1));
    }
    let tensor = Tensor {
        data: at as *mut c_void,
        device_type: DEVICE_CUDA,
        device_id: memory.direct().number() as i32,
        dimensions: shape.len() as i32,
        code,
        bits,
        lanes: 1,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let mut managed = Box::new(ManagedTensor {
        tensor,
        manager: std::ptr::null_mut(),
        deleter: Some(delete),
        shape: shape.to_vec(),
        strides,
        memory: Some(memory.clone()),
    });
    managed.tensor.shape = managed.shape.as_mut_ptr();
    managed.tensor.strides = managed.strides.as_mut_ptr();
    Ok(Box::into_raw(managed))
}
