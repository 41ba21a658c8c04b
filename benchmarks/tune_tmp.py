import itertools, torch, time
from benchmarks.kernels import *
from benchmarks.kernels import _attention_tensors
import cadence.kernels.triton.attention as A
from cadence.kernels.triton.attention import Tiling
import torch.nn.functional as F
dev=torch.device('cuda'); m=LLAMA_8B
shape=AttentionShape(32,8,128,128**-0.5)
def gpu(f,n=10):
    f(); torch.cuda.synchronize()
    g=torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(n): f()
    ts=[]
    for _ in range(5):
        torch.cuda.synchronize(); t=time.perf_counter(); g.replay(); torch.cuda.synchronize(); ts.append((time.perf_counter()-t)/n)
    return min(ts)*1e6
for seqs in ([(0,1024)],[(0,4096)],[(0,512)]*8):
    b=make_batch(dev,seqs,16); q,kv=_attention_tensors(m,b,dev,16); n=q.shape[0]
    c,l=seqs[0]; B=len(seqs)
    d=[torch.randn(B,h,l,128,dtype=m.dtype,device=dev) for h in (32,8,8)]
    print(seqs[0],B,'sdpa',gpu(lambda:F.scaled_dot_product_attention(*d,is_causal=True,enable_gqa=True)))
    for lines,keys,warps in ((64,32,4),(64,64,4),(128,32,4),(128,32,8),(128,64,4),(128,64,8),(128,128,8),(256,64,8),(64,128,4)):
        A.choose_tiling=lambda *a:Tiling(lines//4,keys,warps,1,0)
        try: print(lines,keys,warps,round(gpu(lambda:A.paged_attention(q,kv,b,0,shape)),1),flush=True)
        except Exception as e: print(lines,keys,warps,repr(e)[:80])
for seqs in ([(4095,1)],[(1023,1)]*32,[(255,1)]*64,[(2047,1)]*128,[(32767,1)]):
    b=make_batch(dev,seqs,16); q,kv=_attention_tensors(m,b,dev,16); n=q.shape[0]
    c,l=seqs[0]; B=len(seqs)
    d=[torch.randn(B,h,t,128,dtype=m.dtype,device=dev) for h,t in ((32,1),(8,c+1),(8,c+1))]
    gb=B*(c+1)*8*128*2*2
    t=gpu(lambda:F.scaled_dot_product_attention(*d,enable_gqa=True)); print(seqs[0],B,'sdpa',t, gb/t/1e6,'TB/s')
    for keys,warps,sp in itertools.product((32,64,128),(2,4,8),(1,2,4,8,16,32,64)):
        sk=-(-((c+1+sp-1)//sp)//keys)*keys
        ns=-(-(c+1)//sk)
        if sp>1 and (sk<64 or B*8*ns>4096): continue
        A.choose_tiling=lambda *a:Tiling(4,keys,warps,ns,sk if ns>1 else 0)
        try:
            t=gpu(lambda:A.paged_attention(q,kv,b,0,shape)); print(keys,warps,ns,sk,round(t,1),round(gb/t/1e6,2),flush=True)
        except Exception as e: print(keys,warps,ns,repr(e)[:80])
# launch overhead profile
from cadence.kernels.triton.ops import TritonOps
o=TritonOps(); x=torch.randn(32,4096,dtype=m.dtype,device=dev); w=torch.randn(4096,dtype=m.dtype,device=dev)
import cProfile,pstats
def loop():
    for _ in range(500): o.add_rms_norm(x,x,w,1e-5)
loop(); torch.cuda.synchronize(); t=time.perf_counter(); loop(); print('add_rms_norm host us',(time.perf_counter()-t)/500*1e6)
torch.cuda.synchronize(); p=cProfile.Profile(); p.enable(); loop(); p.disable(); pstats.Stats(p).sort_stats('tottime').print_stats(14)
