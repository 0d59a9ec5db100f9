use aws_lc_sys::*;
use std::ptr::null_mut;
fn cpu_ns()->u64{ let mut t=libc::timespec{tv_sec:0,tv_nsec:0}; unsafe{libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID,&mut t)}; t.tv_sec as u64*1_000_000_000+t.tv_nsec as u64 }
fn per(mut f: impl FnMut())->f64{ let mut v:Vec<f64>=(0..15).map(|_|{let t=cpu_ns(); for _ in 0..400{f()} (cpu_ns()-t) as f64/400.}).collect(); v.sort_by(f64::total_cmp); v[7] }
fn main(){ unsafe{
 let nid=NID_MLKEM768;
 let ctx=EVP_PKEY_CTX_new_id(EVP_PKEY_KEM, null_mut());
 assert_eq!(EVP_PKEY_CTX_kem_set_params(ctx,nid),1); assert_eq!(EVP_PKEY_keygen_init(ctx),1);
 let mut key=null_mut(); let (mut seed,mut sl)=([7u8;64],64usize);
 assert_eq!(EVP_PKEY_keygen_deterministic(ctx,&mut key,seed.as_ptr(),&mut sl),1);
 let mut pk=[0u8;1184]; let mut l=1184; assert_eq!(EVP_PKEY_get_raw_public_key(key,pk.as_mut_ptr(),&mut l),1);
 let mut sk=[0u8;2400]; let mut l=2400; assert_eq!(EVP_PKEY_get_raw_private_key(key,sk.as_mut_ptr(),&mut l),1);
 let (mut ct,mut ss)=([0u8;1088],[0u8;32]);
 let m=[9u8;32];
 let enc=|ct:&mut [u8;1088],ss:&mut [u8;32], k:*mut EVP_PKEY|{ let c=EVP_PKEY_CTX_new(k,null_mut()); let (mut a,mut b,mut s)=(1088,32,32);
   assert_eq!(EVP_PKEY_encapsulate_deterministic(c,ct.as_mut_ptr(),&mut a,ss.as_mut_ptr(),&mut b,m.as_ptr(),&mut s),1); EVP_PKEY_CTX_free(c);};
 println!("encaps with key object {:.0} ns", per(||enc(&mut ct,&mut ss,key)));
 println!("encaps with raw key {:.0} ns", per(||{let k=EVP_PKEY_kem_new_raw_public_key(nid,pk.as_ptr(),1184); enc(&mut ct,&mut ss,k); EVP_PKEY_free(k);}));
 let c=EVP_PKEY_CTX_new(key,null_mut());
 println!("encaps bare {:.0} ns", per(||{let (mut a,mut b,mut s)=(1088,32,32);
   assert_eq!(EVP_PKEY_encapsulate_deterministic(c,ct.as_mut_ptr(),&mut a,ss.as_mut_ptr(),&mut b,m.as_ptr(),&mut s),1);}));
 println!("decaps bare {:.0} ns", per(||{let mut b=32; assert_eq!(EVP_PKEY_decapsulate(c,ss.as_mut_ptr(),&mut b,ct.as_ptr(),1088),1);}));
 println!("keygen {:.0} ns", per(||{seed[0]^=1; let mut k=null_mut(); assert_eq!(EVP_PKEY_keygen_deterministic(ctx,&mut k,seed.as_ptr(),&mut sl),1);EVP_PKEY_free(k);}));
 let mut st=[1u8;1184]; let mut o=[0u8;64]; let mut ol=0;
 println!("sha3-256 of 1184 {:.0} ns", per(||{EVP_Digest(st.as_ptr().cast(),1184,o.as_mut_ptr(),&mut ol,EVP_sha3_256(),null_mut()); st[0]=o[0];}));
}}
