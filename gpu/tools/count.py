#!/usr/bin/env python3
"""Counts a cubin's instructions: count.py DISASSEMBLER_FOLDER IMAGES_FOLDER CHIP [--check TABLE | --write TABLE]

For each kernel of wattlock.CHIP.cubin and wattlock_i.CHIP.cubin: registers, spilled bytes, and, for the kernels that do
the bulk of the work, instructions a byte by pipe on the way that whole, aligned messages take.

How that way is found. The disassembly is cut into basic blocks. A loop with other loops inside is looked at as a graph
without cycles: each inner loop becomes one node, which weighs as often as HOT says (the loop of AES rounds) or nothing
(searches, byte by byte copies). Of all ways once around the loop, the one with the most 16-byte stores (for a kernel
that only hashes: loads) is it; of several, the shortest. How many bytes a lane does on it stands in HOT.

Pipes, as NVIDIA's profiler names them on this chip: alu (LOP3, IADD3, SHF, PRMT, ISETP, SEL, VOTE ...), fma (IMAD and
its moves and shifts), fp64 (CLMAD), lsu (loads, stores, SHFL), uniform, other (branches, barriers). What is not known
to be elsewhere counts as alu. These are counts in a disassembly, not measurements on hardware. The way is found on
sm_90; where another chip's code is laid out otherwise, the program says that it was not found.

--write keeps the figures as JSON, and as the table between the markers of docs/research/gpu.md, with what gpu/check.sh measured
on an H200 (gpu/h200.json). --check fails if a floor is
missed, a loop spills, a figure is more than 1 % above the one that is kept, or the page's table is not the JSON's.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

# row: (kernel, which accesses mark the way, trips of the loop of rounds, bytes a lane does on the way, floor and goal
# of alu a byte on sm_90). Rounds: 9 middle ones for AES-128, 13 for AES-256.
HOT = {
    "AES-128-CTR": ("wl_aes_ctr", "store", 9, 512, 36, 32),
    "AES-256-CTR": ("wl_aes_ctr", "store", 13, 512, 50, 44),
    "AES-256-GCM seal": ("wl_aes_gcm_seal", "store", 13, 512, 52, 45),
    "AES-256-GCM open, hash": ("wl_aes_ghash", "load", 0, 128, None, None),
    "AES-256-GCM open, decrypt": ("wl_aes_gcm_open", "store", 13, 512, None, None),
    "AES-256-GCM seal, integers": ("wl_aes_gcm_seal_i", "store", 13, 512, None, None),
    "AES-256-GCM open, hash, integers": ("wl_aes_ghash_i", "load", 0, 128, None, None),
    "AES-256-XTS encryption": ("wl_aes_xts_encrypt", "store", 13, 512, None, None),
    "AES-256-XTS decryption": ("wl_aes_xts_decrypt", "store", 13, 512, None, None),
    "AES-256-CBC decryption": ("wl_aes_cbc_decrypt", "store", 13, 512, None, None),
    "ChaCha20-Poly1305 seal": ("wl_chacha_seal", "store", 0, 64, 14, 12),
    "ChaCha20-Poly1305 open, hash": ("wl_chacha_poly", "load", 0, 64, None, None),
    "ChaCha20-Poly1305 open, decrypt": ("wl_chacha_open", "store", 0, 64, None, None),
}

FMA = re.compile(r"^(IMAD|FFMA|FMUL|FADD|HFMA2)")
LSU = re.compile(r"^(LD|ST|LDG|STG|LDL|STL|LDS|STS|LDC|SHFL|ATOM|RED|MEMBAR|CCTL|ERRBAR)(\.|$)")
OTHER = re.compile(r"^(BRA|BRX|EXIT|RET|CALL|BSSY|BSYNC|WARPSYNC|NOP|S2R|S2UR|CS2R|BAR|DEPBAR|BMOV|YIELD|R2UR"
                   r"|POPC|FLO|MUFU|I2F|F2I|BREAK|ENDCOLLECTIVE|NANOSLEEP|LEPC)(\.|$)")


def pipe(name):
    if name.startswith("CLMAD") or re.match(r"^D(ADD|MUL|FMA|SETP)", name):
        return "fp64"
    if FMA.match(name):
        return "fma"
    if LSU.match(name):
        return "lsu"
    if OTHER.match(name):
        return "other"
    if name.startswith("U") and not name.startswith("UNK"):
        return "uniform"
    return "alu"


class Instruction:
    def __init__(self, at, guard, name, rest):
        self.at, self.guard, self.name, self.rest = at, guard, name, rest
        target = re.search(r"0x([0-9a-f]+)", rest) if name.startswith("BRA") else None
        self.target = int(target.group(1), 16) if target else None
        self.ends = name.split(".")[0] in ("BRA", "EXIT", "RET", "BRX", "BREAK")


def functions(disassembler, image):
    text = subprocess.run([disassembler, "-sass", str(image)], capture_output=True, text=True, check=True).stdout
    found, current = {}, None
    for line in text.splitlines():
        name = re.search(r"Function : (\S+)", line)
        if name:
            current = found.setdefault(name.group(1), [])
            continue
        match = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?);", line)
        if match and current is not None:
            current.append(Instruction(int(match.group(1), 16), match.group(2), match.group(3), match.group(4)))
    return found


class Graph:
    def __init__(self, code):
        at = {i.at: n for n, i in enumerate(code)}
        starts = {0}
        for n, i in enumerate(code):
            if i.target is not None:
                starts.add(at[i.target])
            if i.ends and n + 1 < len(code):
                starts.add(n + 1)
        order = sorted(starts)
        self.blocks = [code[a:b] for a, b in zip(order, order[1:] + [len(code)])]
        number = {a: k for k, a in enumerate(order)}
        self.next = []
        for k, block in enumerate(self.blocks):
            last, out = block[-1], []
            if last.target is not None:
                out.append(number[at[last.target]])
            # BRA.DIV and BRA.U with a condition of their own fall through as well.
            certain = last.ends and not last.guard and not re.search(r"\bU?P\d", last.rest) and \
                not last.name.startswith("BRA.DIV")
            if not certain and k + 1 < len(self.blocks):
                out.append(k + 1)
            self.next.append(out)

    def components(self, inside, without=None):
        """Strongly connected components of a set of blocks, without edges to one of them (Tarjan)."""
        index, low, stack, on, result = {}, {}, [], set(), []
        for root in inside:
            if root in index:
                continue
            work = [(root, iter(self.next[root]))]
            index[root] = low[root] = len(index)
            stack.append(root), on.add(root)
            while work:
                node, following = work[-1]
                for other in following:
                    if other not in inside or other == without:
                        continue
                    if other not in index:
                        index[other] = low[other] = len(index)
                        stack.append(other), on.add(other)
                        work.append((other, iter(self.next[other])))
                        break
                    if other in on:
                        low[node] = min(low[node], index[other])
                else:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    if low[node] == index[node]:
                        component = set()
                        while True:
                            k = stack.pop()
                            on.discard(k)
                            component.add(k)
                            if k == node:
                                break
                        result.append(component)
        return result  # successors first

    def is_loop(self, component):
        return len(component) > 1 or any(k in self.next[k] for k in component)

    def loops(self, inside=None, without=None):
        """All loops: (header, blocks), outer before inner."""
        inside = set(range(len(self.blocks))) if inside is None else inside
        for component in self.components(inside, without):
            if not self.is_loop(component):
                continue
            heads = [k for k in component
                     if any(k in self.next[p] for p in range(len(self.blocks)) if p not in component)]
            head = min(heads) if heads else min(component)
            yield head, component
            if len(component) > 1:
                yield from self.loops(component, head)


def tally(code):
    pipes = {}
    for i in code:
        pipes[pipe(i.name)] = pipes.get(pipe(i.name), 0) + 1
    return pipes


def wide_accesses(code, what):
    names = ("STG", "ST") if what == "store" else ("LDG", "LD")
    return sum(1 for i in code if i.name.split(".")[0] in names and ".128" in i.name)


def hot_way(graph, what, trips, size):
    """The way once around the loop that has most wide accesses: instructions by pipe."""
    best = None
    for head, body in graph.loops():
        inner = [(h, c) for h, c in graph.loops(body, head)]
        top = {}  # block: its outermost inner loop
        for h, c in inner:
            for k in c:
                top.setdefault(k, (h, frozenset(c)))
        nodes = graph.components(body, head)
        node_of = {k: n for n, c in enumerate(nodes) for k in c}
        rounds = None
        if trips:
            # The loop of rounds: the innermost loop with the most instructions of its own.
            innermost = [c for h, c in inner if not any(o < c for _, o in inner)]
            rounds = max(innermost, key=lambda c: sum(len(graph.blocks[k]) for k in c), default=None)

        def weight(n):
            component = nodes[n]
            if not graph.is_loop(component) or (len(component) == 1 and head in component):
                code = [i for k in component for i in graph.blocks[k]]
                return wide_accesses(code, what), tally(code)
            if rounds is not None and rounds <= component:
                code = [i for k in rounds for i in graph.blocks[k]]
                return 0, {p: c * trips for p, c in tally(code).items()}
            return 0, {}

        ways = {}  # node: (accesses, -instructions, pipes), from it to the loop's end
        for n, component in enumerate(nodes):  # successors first
            accesses, pipes = weight(n)
            following = []
            for k in component:
                for other in graph.next[k]:
                    if other == head:
                        following.append((0, 0, {}))
                    elif other in body and node_of[other] != n and ways.get(node_of[other]):
                        following.append(ways[node_of[other]])
            if not following:
                ways[n] = None
                continue
            a, i, p = max(following, key=lambda w: (w[0], w[1]))
            total = {name: pipes.get(name, 0) + p.get(name, 0) for name in set(pipes) | set(p)}
            ways[n] = (a + accesses, i - sum(pipes.values()), total)
        way = ways.get(node_of[head])
        if way and way[0] and (best is None or way[0] > best[0]):
            best = way
    # One more than the messages' own is a hash's share that is stored.
    if best is None or best[0] not in (size // 16, size // 16 + 1):
        raise SystemExit(f"the way that whole messages take was not found: {best[0] if best else 0} wide accesses, not "
                         f"{size // 16}")
    return best[2]


def spills_in_loops(graph):
    """Loads from local memory inside the innermost loops with the bulk of instructions."""
    loops = list(graph.loops())
    innermost = [c for _, c in loops if not any(o < c for _, o in loops)]
    heavy = [c for c in innermost if sum(len(graph.blocks[k]) for k in c) > 500]
    return sum(1 for c in heavy for k in c for i in graph.blocks[k] if i.name.split(".")[0] in ("LDL", "STL"))


PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs/research/gpu.md"
HARDWARE = pathlib.Path(__file__).resolve().parent.parent / "h200.json"
BEGIN, END = "<!-- instructions:begin -->", "<!-- instructions:end -->"


# What gpu/check.sh calls it.
SEEN = {
    "AES-128-CTR": "aes-128-ctr", "AES-256-CTR": "aes-256-ctr", "AES-256-GCM seal": "aes-256-gcm",
    "AES-256-GCM open, decrypt": "aes-256-gcm open", "AES-256-GCM seal, integers": "aes-256-gcm by integers",
    "AES-256-XTS encryption": "aes-256-xts", "AES-256-XTS decryption": "aes-256-xts-decrypt",
    "AES-256-CBC decryption": "aes-256-cbc decryption", "ChaCha20-Poly1305 seal": "chacha20-poly1305",
    "ChaCha20-Poly1305 open, decrypt": "chacha20-poly1305 open",
}


def measured():
    """GB/s of messages of 16 KiB in gpu/h200.json, by name, and lop3 a second."""
    phases = {one["phase"]: one for one in json.loads(HARDWARE.read_text())["phases"]}
    found = {row["work"]: row["gb_per_s"] for row in phases["rates"]["rows"] if row["message_bytes"] == 16384}
    for row in phases["program"]["sheet"]["rows"]:
        if row["params"].get("bytes") == 16384:
            found.setdefault(row["row"], row["ours"])
    return {**found, "lop3": phases["limits"]["wl_rate_lop3"]["per_s"]}


def page_with(table):
    """docs/research/gpu.md with the table in place."""
    lines = ["| work | alu | floor (goal), alu | H200, GB/s | of what alu allows |", "|---|---|---|---|---|"]
    lop3, seen, before = measured()["lop3"], measured(), 0
    for row, r in table["rows"].items():
        floor, goal = HOT[row][4:6]
        name, rate, share = SEEN.get(row), "", ""
        if name:
            # What opens first hashes: the row above.
            alu = r["alu"] + (before if row.endswith(", decrypt") else 0)
            rate, share = f"{seen[name]:,.0f}", f"{100 * seen[name] * 1e9 * alu / lop3:.0f} %"
        lines.append(f"| {row} | {r['alu']:.1f} | {f'{floor} ({goal})' if floor else ''} | {rate} | {share} |")
        before = r["alu"]
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + rest.split(END)[1]


def main():
    if len(sys.argv) not in (4, 6):
        sys.exit(__doc__)
    tools, images, chip = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    disassembler = next(iter(sorted(tools.rglob("cuobjdump"))), None)
    if disassembler is None:
        sys.exit(f"{tools}: no cuobjdump")
    disassembler.chmod(0o755)
    os.environ["PATH"] = f"{disassembler.parent}:{os.environ['PATH']}"
    for helper in tools.rglob("nvdisasm"):
        helper.chmod(0o755)
    code, kernels = {}, {}
    for stem in ("wattlock", "wattlock_i"):
        code.update(functions(str(disassembler), images / f"{stem}.{chip}.cubin"))
        log = (images / f"{stem}.{chip}.log").read_text()
        for name, stack, stores, loads, registers in re.findall(
                r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                r"(\d+) bytes spill loads.*?Used (\d+) registers", log, re.S):
            kernels[name] = {"registers": int(registers), "spill_stores": int(stores), "spill_loads": int(loads),
                             "stack": int(stack)}
    graphs = {name: Graph(lines) for name, lines in code.items()}
    for name in kernels:
        kernels[name]["local_in_hot_loop"] = spills_in_loops(graphs[name])
        kernels[name]["instructions"] = len(code[name])
    rows = {}
    for row, (kernel, what, trips, size, _, _) in HOT.items():
        if kernel not in graphs:
            continue
        pipes = hot_way(graphs[kernel], what, trips, size)
        rows[row] = {"kernel": kernel, "bytes": size,
                     **{p: round(pipes.get(p, 0) / size, 2) for p in ("alu", "fma", "fp64", "lsu", "uniform", "other")}}
    table = {"chip": chip, "note": "counted in a disassembly", "kernels": kernels, "rows": rows}
    print(f"{chip}: instructions a byte by pipe, whole aligned messages")
    print(f"{'':34}{'alu':>7}{'fma':>7}{'fp64':>7}{'lsu':>7}  registers")
    bad = []
    for row, r in rows.items():
        k = kernels[r["kernel"]]
        print(f"{row:34}{r['alu']:7.2f}{r['fma']:7.2f}{r['fp64']:7.2f}{r['lsu']:7.2f}  {k['registers']}"
              + (f", {k['local_in_hot_loop']} spills in the loop" if k["local_in_hot_loop"] else ""))
        floor = HOT[row][4]
        if chip == "sm_90" and floor and r["alu"] > floor:
            bad.append(f"{row}: {r['alu']} a byte, floor {floor}")
        if k["local_in_hot_loop"]:
            bad.append(f"{r['kernel']}: a loop spills")
    if len(sys.argv) == 6 and sys.argv[4] == "--write":
        pathlib.Path(sys.argv[5]).write_text(json.dumps(table, indent=1) + "\n")
        PAGE.write_text(page_with(table))
    if len(sys.argv) == 6 and sys.argv[4] == "--check":
        kept = json.loads(pathlib.Path(sys.argv[5]).read_text())
        if PAGE.read_text() != page_with(kept):
            bad.append(f"{PAGE.name}: its table is not that of {sys.argv[5]}")
        for row in sorted(set(kept["rows"]) | set(rows)):
            if row not in rows or row not in kept["rows"]:
                bad.append(f"{row}: in the table or in the cubin, not in both")
            elif rows[row]["alu"] > kept["rows"][row]["alu"] * 1.01:
                bad.append(f"{row}: {rows[row]['alu']} a byte, the table has {kept['rows'][row]['alu']}")
        for name, k in kernels.items():
            old = kept["kernels"].get(name)
            if old and k["spill_loads"] > old["spill_loads"]:
                bad.append(f"{name}: spills {k['spill_loads']} bytes, the table has {old['spill_loads']}")
        if bad:
            sys.exit("\n".join(bad))


if __name__ == "__main__":
    main()
