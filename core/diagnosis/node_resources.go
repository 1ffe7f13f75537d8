// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// resourceChecks are about what a proxy needs of a machine besides its network.
func resourceChecks() []check {
	return []check{
		{"clock", "", clock},
		{"file-descriptors", "linux", descriptors},
		{"system-files", "linux", systemFiles},
		{"memory-limit", "", memoryLimit},
		{"memory-available", "", memoryAvailable},
		{"inotify", "linux", inotify},
	}
}

func clock(f *Facts) Check {
	const most = time.Second
	switch c := f.Clock; {
	case c == nil:
		return Check{}
	case !c.Synchronized:
		return warn("the clock is not synchronized: certificates may not be valid yet or any more, and latencies are wrong", map[string]string{"windows": "w32tm /resync"}[f.System]+map[string]string{"linux": "timedatectl set-ntp true, or start chronyd"}[f.System])
	case c.Error > most:
		return note(fmt.Sprintf("the clock may be wrong by %s", c.Error.Round(time.Millisecond)), "look at the time servers: chronyc sources")
	}
	return ok("the clock is synchronized")
}

func descriptors(f *Facts) Check {
	const least = 65536
	if f.Files.Limit == 0 {
		return Check{}
	}
	return either(ok(fmt.Sprintf("%d file descriptors for each process", f.Files.Limit)),
		warn(fmt.Sprintf("only %d file descriptors for each process: mode userspace needs one or two for each connection", f.Files.Limit), "LimitNOFILE=1048576 in the unit, or ulimit -n 1048576"),
		f.Files.Limit >= least || f.Mode != "userspace")
}

func systemFiles(f *Facts) Check {
	if f.SystemFile.Limit == 0 {
		return Check{}
	}
	return either(ok(fmt.Sprintf("%d files are open on this machine", f.SystemFile.Used)),
		warn(fmt.Sprintf("%d of %d files are open on this machine", f.SystemFile.Used, f.SystemFile.Limit), fmt.Sprintf("sysctl -w fs.file-max=%d", 2*f.SystemFile.Limit)), !f.SystemFile.over(nearlyFull))
}

func memoryLimit(f *Facts) Check {
	m := f.Memory
	const fix = "raise resources.limits.memory of the DaemonSet, or MemoryMax of the unit"
	switch text := fmt.Sprintf("%d of %d MiB allowed here are in use", m.Used>>20, m.Limit>>20); {
	case f.OOMKills > 0:
		return warn(fmt.Sprintf("%d processes were killed here for lack of memory", f.OOMKills), fix)
	case m.Limit == 0:
		return Check{}
	case m.over(nearlyFull):
		return warn(text, fix)
	default:
		return ok(text)
	}
}

func memoryAvailable(f *Facts) Check {
	const least = 0.05
	a := f.Available
	if a.Limit == 0 {
		return Check{}
	}
	return either(ok(fmt.Sprintf("%d of %d MiB of memory are available", a.Used>>20, a.Limit>>20)),
		warn(fmt.Sprintf("low memory: %d of %d MiB available; updates may fail", a.Used>>20, a.Limit>>20), "stop or move the largest consumer"), a.over(least))
}

func inotify(f *Facts) Check {
	const least = 64
	n, known := f.sysctl("fs/inotify/max_user_instances")
	if !known {
		return Check{}
	}
	return either(ok(fmt.Sprintf("%d inotify instances for each user", n)),
		note(fmt.Sprintf("only %d inotify instances for each user: changes of manifests and configuration may be noticed late", n), "sysctl -w fs.inotify.max_user_instances=512"), n >= least)
}

// windowsChecks are about Windows alone.
func windowsChecks() []check {
	return []check{
		{"windows-version", "windows", windowsVersion},
		{"hns-service", "windows", func(f *Facts) Check {
			return service(f, "hns", Fail, "Host Network Service", "Start-Service hns; it comes with the feature Containers")
		}},
		{"vfp-service", "windows", func(f *Facts) Check {
			return service(f, "vfpext", Fail, "virtual filtering platform", "Install-WindowsFeature Containers, and an external switch of the network plugin")
		}},
		{"dynamic-ports", "windows", dynamicPorts},
	}
}

func windowsVersion(f *Facts) Check {
	v := version(f.Kernel)
	switch {
	case v == [3]int{}:
		return Check{}
	case v[2] < 17763:
		return fail("Windows "+f.Kernel+" is older than Windows Server 2019, the oldest that Kubernetes supports", "upgrade to Windows Server 2022")
	case v[2] < 20348:
		return note("Windows Server 2019 ("+f.Kernel+"): HNS is slower, and has no load balancers that can be modified", "upgrade to Windows Server 2022")
	}
	return ok("Windows " + f.Kernel)
}

func service(f *Facts, name string, missing Level, title, fix string) Check {
	switch state := f.Services[name]; {
	case f.Services == nil:
		return Check{}
	case state == "running":
		return ok("the " + title + " runs")
	case state == "":
		return Check{Level: missing, Found: "the " + title + " (" + name + ") is not installed", Fix: fix}
	default:
		return Check{Level: missing, Found: "the " + title + " (" + name + ") is " + state, Fix: fix}
	}
}

func dynamicPorts(f *Facts) Check {
	first, last := f.Dynamic[0], f.Dynamic[1]
	if last == 0 || f.NodePorts[1] == 0 {
		return Check{}
	}
	return either(ok("dynamic ports are no node ports"),
		warn(fmt.Sprintf("dynamic ports %d-%d overlap with node ports %d-%d", first, last, f.NodePorts[0], f.NodePorts[1]), "netsh int ipv4 set dynamicport tcp start=49152 num=16384"),
		last < f.NodePorts[0] || first > f.NodePorts[1])
}

// runningChecks are about a tandem that runs here.
func runningChecks() []check {
	return []check{
		{"degraded-objects", "", degraded},
		{"tandem", "", running},
		{"api-lag", "", lag},
		{"services", "", services},
		{"drift", "", drift},
	}
}

func degraded(f *Facts) Check {
	if f.Running == nil {
		return Check{}
	}
	degraded, fix := f.Running.Degraded, "see tandem status for the degraded parts; if nothing else helps, restart tandem"
	if f.System == "windows" {
		fix = "tandem status and tandem hns dump name them; where re-creating does not help, Restart-Service hns programs everything again, and interrupts pods"
	}
	return either(ok("no object of the data plane is degraded"), warn("degraded: "+strings.Join(degraded, "; "), fix), len(degraded) == 0)
}

func running(f *Facts) Check {
	switch r := f.Running; {
	case r == nil:
		return note("no tandem answers here", "tandem run, or tandem start; with another --metrics-bind-address: tandem doctor --address")
	case !r.Healthy:
		return fail("tandem runs and is not healthy: "+strings.Join(r.Reasons, "; "), "tandem status, tandem history --failed")
	case f.Mode != r.Mode && f.Mode != "auto" && f.Mode != "":
		return note("tandem runs in mode "+r.Mode+"; the checks were for mode "+f.Mode, "tandem doctor --proxy-mode "+r.Mode)
	default:
		return ok("tandem is healthy, in mode " + r.Mode)
	}
}

// lag: a watch that works has a bookmark or an event each minute.
func lag(f *Facts) Check {
	const most = 90 * time.Second
	if f.Running == nil || len(f.Running.Inputs) == 0 {
		return Check{}
	}
	var late []string
	worst := time.Duration(0)
	for name, age := range f.Running.Inputs {
		if worst = max(worst, age); age > most {
			late = append(late, fmt.Sprintf("%s (%s)", name, age.Round(time.Second)))
		}
	}
	slices.Sort(late)
	if len(f.Running.Unlisted) > 0 {
		return fail("never listed: "+strings.Join(f.Running.Unlisted, ", ")+"; Services of an earlier run are kept as they are", "run tandem status for the reason; check the API server and the network path to it")
	}
	return either(ok("all inputs were up to date at most "+worst.Round(100*time.Millisecond).String()+" ago"),
		warn("no recent data: "+strings.Join(late, ", ")+"; the last known state is served", "run tandem status for the reason; check the API server and the network path to it"), len(late) == 0)
}

func services(f *Facts) Check {
	r := f.Running
	switch {
	case r == nil:
		return Check{}
	case len(r.Failing) > 0:
		return fail("not programmed: "+list(r.Failing), "tandem status, tandem history --failed")
	case r.Pending > 0:
		return note(fmt.Sprintf("%d Services are being programmed", r.Pending), "tandem status shows how far it is")
	case r.Partial > 0:
		return note(fmt.Sprintf("%d Services are served in part", r.Partial), "tandem status says which, and why")
	}
	return ok("all Services are programmed")
}

func drift(f *Facts) Check {
	if f.Running == nil {
		return Check{}
	}
	return either(ok("no other program has changed tandem's objects"),
		warn(fmt.Sprintf("other programs changed %d objects of tandem since its start; they were repaired", f.Running.Drift), "tandem history shows when; find the program, such as a firewall that is reloaded"), f.Running.Drift == 0)
}
