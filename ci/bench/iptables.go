package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/iptables"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// compareIPTables measures the iptables mode beside the rules that kube-proxy
// writes, in the same namespace and with the same commands. Of kube-proxy only
// iptables-restore is measured: what the program itself does comes on top. Both
// programs on an API server are what ci/kubernetes/bench -tandem-mode iptables
// measures.
func compareIPTables(ctx context.Context, w world) error {
	w.udp = true // new flows are a packet each
	fmt.Printf("iptables mode, %d Services x %d endpoints; kube-proxy stands for its rules by iptables-restore alone\n", w.services, w.endpoints)
	for _, args := range []string{"link set lo up", "route add 10.0.0.0/8 dev lo"} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	for _, v := range []xtables.Variant{xtables.Legacy, xtables.NFT} {
		if err := variant(ctx, v, w); err != nil {
			return fmt.Errorf("iptables, %s variant: %w", v, err)
		}
	}
	return nil
}

// figures are what is compared.
type figures struct {
	full, fullCPU, change, changeCPU time.Duration
	packet                           time.Duration
	unfinished                       bool // full is when it was given up
}

// variant measures one variant; the plain names stand for it meanwhile.
func variant(ctx context.Context, v xtables.Variant, w world) error {
	undo, err := useVariant(v)
	if err != nil {
		plain(string(v), "not measured: "+err.Error())
		return nil
	}
	defer undo()
	idle, err := firstPacket(ctx, w, false)
	if err != nil {
		return err
	}
	ours, err := tandemFigures(ctx, w)
	if err != nil {
		return err
	}
	theirs, err := kubeProxyFigures(ctx, w)
	if err != nil {
		return fmt.Errorf("rules of kube-proxy: %w", err)
	}
	least := map[xtables.Variant]float64{xtables.Legacy: 5, xtables.NFT: 20}[v]
	more := ""
	if theirs.unfinished {
		more = "more than "
	}
	versus(string(v)+": full programming", ours.full, theirs.full, 2, more)
	versus(string(v)+": full programming, CPU", ours.fullCPU, theirs.fullCPU, 0, more)
	versus(string(v)+": one change", ours.change, theirs.change, 0, "")
	versus(string(v)+": one change, CPU", ours.changeCPU, theirs.changeCPU, least, "")
	versus(string(v)+": first packet to a random Service", ours.packet-idle, theirs.packet-idle, 5, "")
	return nil
}

// versus prints two figures and, where there is one, whether the goal is met
// that theirs is a number of times ours.
func versus(what string, ours, theirs time.Duration, times float64, more string) {
	ratio := float64(theirs) / float64(max(ours, 1))
	got := fmt.Sprintf("%s; kube-proxy %s%s, %s%.1f times", show(ours), more, show(theirs), more, ratio)
	if times == 0 {
		plain(what, got)
		return
	}
	goal(what, got, ratio >= times, fmt.Sprintf("≥ %.0f times", times))
}

func tandemFigures(ctx context.Context, w world) (f figures, err error) {
	r, err := newRigIn(ctx, iptables.Name, w)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	r.load()
	cpu := cpuTime()
	took, work, err := r.apply()
	if err != nil {
		return f, err
	}
	f.full, f.fullCPU = took, cpuTime()-cpu
	plain("objects", fmt.Sprintf("%d in %d transactions", work.Ops, work.Commits))
	if work.Refused != nil {
		plain("refused as a whole", work.Refused.Error())
	}
	const n = 20
	cpu = cpuTime()
	changes, _, err := r.changes(n, func(i int) *model.Slice { return w.slice(i*7%w.services, 1, 1+i) })
	if err != nil {
		return f, err
	}
	f.change, f.changeCPU = changes.quantile(.5), (cpuTime()-cpu)/n
	if f.packet, err = firstPacket(ctx, w, true); err != nil {
		return f, err
	}
	return f, restartIPTables(ctx, w, r)
}

// restartIPTables brings the world back to what it was at first, and starts
// anew on it.
func restartIPTables(ctx context.Context, w world, r *rig) error {
	r.load()
	if _, _, err := r.apply(); err != nil {
		return err
	}
	begin := time.Now()
	again, err := newRigIn(ctx, iptables.Name, w)
	if err != nil {
		return err
	}
	defer again.backend.Close()
	again.load()
	_, work, err := again.apply()
	goal("restart: writes", fmt.Sprintf("%d, after %s", work.Ops, show(time.Since(begin))), work.Ops == 0, "0")
	return err
}

// tooLong is after what time the rules of kube-proxy are given up: the nft
// variant takes many minutes for all of them at once.
const tooLong = time.Minute

// kubeProxyFigures loads what kube-proxy writes, by iptables-restore. Where that
// takes too long the rules get there in parts, so that the rest can be measured.
func kubeProxyFigures(ctx context.Context, w world) (f figures, err error) {
	defer func() { err = errors.Join(err, flushNAT()) }()
	limited, cancel := context.WithTimeout(ctx, tooLong)
	f.full, f.fullCPU, err = restore(limited, w.kubeProxyRules(0, w.services, 0))
	f.unfinished = limited.Err() != nil
	cancel()
	if f.unfinished {
		err = errors.Join(flushNAT(), w.kubeProxyInParts(ctx))
	}
	if err != nil {
		return f, err
	}
	var walls, cpus times
	for i := range 5 {
		wall, cpu, err := restore(ctx, w.kubeProxyRules(i, i+1, i+1))
		if err != nil {
			return f, err
		}
		walls, cpus = append(walls, wall), append(cpus, cpu)
	}
	f.change, f.changeCPU = walls.quantile(.5), cpus.quantile(.5)
	f.packet, err = firstPacket(ctx, w, true)
	return f, err
}

// kubeProxyInParts writes the chains of some Services at a time.
func (w world) kubeProxyInParts(ctx context.Context) error {
	const part = 500
	for from := 0; from < w.services; from += part {
		only := w
		only.services = from + part // those after it have no chains yet
		if _, _, err := restore(ctx, only.kubeProxyRules(from, from+part, 0)); err != nil {
			return err
		}
	}
	return nil
}

// restore runs iptables-restore, also where that fails.
func restore(ctx context.Context, rules string) (wall, cpu time.Duration, err error) {
	start := time.Now()
	cmd := exec.CommandContext(ctx, "iptables-restore", "--noflush")
	cmd.Stdin = strings.NewReader(rules)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("iptables-restore: %w: %s", err, out)
	}
	if s := cmd.ProcessState; s != nil {
		cpu = s.UserTime() + s.SystemTime()
	}
	return time.Since(start), cpu, err
}

func flushNAT() error {
	var err error
	for _, what := range []string{"-F", "-X"} {
		err = errors.Join(err, exec.Command("iptables", "-t", "nat", what).Run())
	}
	return err
}

// firstPacket measures what a new flow costs: packets to random Services, which
// are translated and then dropped, so that none of them is ever a known flow.
// Those to nobody are what it costs without Services.
func firstPacket(ctx context.Context, w world, services bool) (time.Duration, error) {
	table := func(verb string) error {
		out, err := exec.CommandContext(ctx, "iptables", "-t", "mangle", verb, "POSTROUTING", "-p", "udp", "-j", "DROP").CombinedOutput()
		if err != nil {
			return fmt.Errorf("drop after translation: %w: %s", err, out)
		}
		return nil
	}
	if err := table("-A"); err != nil {
		return 0, err
	}
	conn, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return 0, errors.Join(err, table("-D"))
	}
	defer conn.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	to := make([]*net.UDPAddr, 4096)
	for i := range to {
		to[i] = &net.UDPAddr{IP: net.IPv4(10, 1, 1, 1), Port: 80}
		if services {
			to[i].IP = w.serviceIP(rng.IntN(w.services)).AsSlice()
		}
	}
	var rounds times
	for range 7 {
		start := time.Now()
		for _, a := range to {
			_, _ = conn.WriteTo([]byte("x"), a) // dropped, and said so
		}
		rounds = append(rounds, time.Since(start)/time.Duration(len(to)))
	}
	return slices.Min(rounds), table("-D")
}

// useVariant makes the plain names stand for a variant until undo.
func useVariant(v xtables.Variant) (undo func(), err error) {
	dir, err := os.MkdirTemp("", "tandem-bench-")
	if err != nil {
		return nil, err
	}
	path := os.Getenv("PATH")
	undo = func() { _ = os.RemoveAll(dir); _ = os.Setenv("PATH", path) }
	for _, base := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-restore", "-save"} {
			command, err := exec.LookPath(base + "-" + string(v) + verb)
			if err == nil {
				err = os.Symlink(command, filepath.Join(dir, base+verb))
			}
			if err != nil {
				undo()
				return nil, err
			}
		}
	}
	return undo, os.Setenv("PATH", dir+":"+path)
}

// cpuTime is the time on processors of this process and of its children that
// have ended.
func cpuTime() (sum time.Duration) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	const first, tick = 14 - 3, 10 * time.Millisecond // utime, stime, cutime, cstime: proc(5)
	for _, field := range strings.Fields(rest)[first : first+4] {
		n, _ := strconv.Atoi(field)
		sum += time.Duration(n) * tick
	}
	return sum
}
