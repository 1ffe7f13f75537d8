// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNativePlansAreAccepted gives the plans of a tutorial's manifests to the
// system's own tools, each in a network namespace of its own.
func TestNativePlansAreAccepted(t *testing.T) {
	for _, tt := range []struct{ name, mode, try, variant, has string }{
		{"nftables", "nftables", "nft list ruleset", "", "10.244.3.5 . 80"},
		{"iptables-legacy", "iptables", "iptables-legacy -L", "-legacy", "10.244.3.5:80"},
		{"iptables-nft", "iptables", "iptables-nft -L", "-nft", "10.244.3.5:80"},
		{"ipvs", "ipvs", "ipset list -name && ipvsadm -L && ip link add dummy7 type dummy", "", "-r 10.244.3.5:80"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if out, err := inNamespace(t.TempDir(), tt.try); err != nil {
				t.Skipf("the tools do not work here: %v: %s", err, out)
			}
			code, plan, stderr := tandem(t, "plan", "--manifests", "../../ci/manifests", "--node", "node-1", "--cluster-cidr", "10.244.0.0/16", "--proxy-mode", tt.mode, "--nodeport-addresses", "192.0.2.0/24", "-o", "native")
			if code != exitOK || stderr != "" || !strings.Contains(plan, tt.has) {
				t.Fatalf("exit code %d, %s\n%s", code, stderr, plan)
			}
			dir := t.TempDir()
			if out, err := inNamespace(dir, nativeScript(t, dir, plan, tt.variant)); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// inNamespace runs a script of the shell in a network namespace of its own.
func inNamespace(dir, script string) (out []byte, err error) {
	flag := "-n"
	if os.Getuid() != 0 {
		flag = "-rn"
	}
	cmd := exec.Command("unshare", flag, "sh", "-c", script)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(dir, "lock"))
	return cmd.CombinedOutput()
}

// nativeScript gives each part of a plan to the command in the part's first
// line; a plan that does not begin with one is nft's. The variant is that of
// iptables.
func nativeScript(t *testing.T, dir, plan, variant string) string {
	script := "set -e\n"
	command, part := "nft -f", ""
	end := func() {
		path := filepath.Join(dir, fmt.Sprint("part-", strings.Count(script, "\n")))
		if err := os.WriteFile(path, []byte(part), 0o644); err != nil {
			t.Fatal(err)
		}
		switch name, args, _ := strings.Cut(command, " "); name {
		case "nft", "ip": // these read files that are named
			script += fmt.Sprintf("%s %s\n", command, path)
		default:
			script += fmt.Sprintf("%s %s <%s\n", strings.Replace(name, "tables-", "tables"+variant+"-", 1), args, path)
		}
	}
	for line := range strings.Lines(plan) {
		name, isPart := strings.CutPrefix(line, "# ")
		if isPart {
			if part != "" {
				end()
			}
			command, part = strings.TrimSpace(name), ""
			continue
		}
		part += line
	}
	end()
	return script
}

// Each part of a native plan is accepted by its own tool, without any line of Tandem's.
// What this kernel lacks is reported.
func TestPartsAreAcceptedByTheirTools(t *testing.T) {
	for _, tt := range []struct{ mode, part, try, check string }{
		{"nftables", "nft", "nft list ruleset", "nft -c -f %s"},
		{"iptables", "iptables-restore", "iptables -L", "iptables-restore --test <%s"},
		{"iptables", "ip6tables-restore", "ip6tables -L", "ip6tables-restore --test <%s"},
		{"ipvs", "ipset", "ipset list -name", "ipset restore <%s"},
		{"ipvs", "ip-4", "ip link add dummy7 type dummy", "ip -4 -batch %s"},
		{"ipvs", "ipvsadm", "ipvsadm -L", "ip link set lo up; ipvsadm -R <%s"}, // without a local address IPVS takes all for broadcast
		{"userspace", "iptables-restore", "iptables -L", "iptables-restore --test <%s"},
	} {
		t.Run(tt.mode+"/"+tt.part, func(t *testing.T) {
			dir := t.TempDir()
			code, plan, stderr := tandem(t, "plan", "--manifests", "../../ci/manifests", "--node", "node-1", "--cluster-cidr", "10.244.0.0/16",
				"--proxy-mode", tt.mode, "--nodeport-addresses", "192.0.2.0/24", "-o", "native", "--part", tt.part)
			if code != exitOK || plan == "" || strings.HasPrefix(plan, "#") {
				t.Fatalf("exit code %d, %s\n%s", code, stderr, plan)
			}
			if tt.part == "ipvsadm" { // the text is checked even without IPVS in this kernel
				checkIPVSAdm(t, plan)
			}
			if out, err := inNamespace(dir, tt.try); err != nil {
				t.Skipf("the tool does not work here: %v: %s", err, out)
			}
			path := filepath.Join(dir, "part")
			if err := os.WriteFile(path, []byte(plan), 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := inNamespace(dir, fmt.Sprintf("set -e; "+tt.check, path)); err != nil {
				t.Errorf("%v: %s\n%s", err, out, plan)
			}
		})
	}
}

// checkIPVSAdm checks the lines of ipvsadm -R: services and servers with the options of
// ipvsadm(8).
func checkIPVSAdm(t *testing.T, plan string) {
	t.Helper()
	line := regexp.MustCompile(`^-(A -[tu] \S+ -s \S+( -p \d+)?( -b \S+)?|a -[tu] \S+ -r \S+ -[mgi] -w \d+( .*)?|A .* --sctp.*|[Aa] --sctp-service .*)$`)
	for l := range strings.Lines(plan) {
		if !line.MatchString(strings.TrimSpace(l)) {
			t.Errorf("ipvsadm would not read %q", l)
		}
	}
}
