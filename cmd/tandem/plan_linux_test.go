package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestPlanIsAcceptedByNft gives the plan of a tutorial's manifests to nft, which
// checks it in a network namespace of its own and changes nothing.
func TestPlanIsAcceptedByNft(t *testing.T) {
	args := []string{"-n", "nft", "-c", "-f", "-"}
	if os.Getuid() != 0 {
		args[0] = "-rn"
	}
	if out, err := exec.Command("unshare", append(args[:1:1], "nft", "list", "ruleset")...).CombinedOutput(); err != nil {
		t.Skipf("no nft in a namespace of its own: %v: %s", err, out)
	}
	code, script, stderr := tandem(t, "plan", "--manifests", "../../ci/manifests", "--node", "node-1", "--cluster-cidr", "10.244.0.0/16", "--proxy-mode", "nftables", "--nodeport-addresses", "192.0.2.0/24", "-o", "native")
	if code != exitOK || stderr != "" || !strings.Contains(script, "10.244.3.5 . 80") {
		t.Fatalf("exit code %d, %s\n%s", code, stderr, script)
	}
	cmd := exec.Command("unshare", args...)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("nft: %v: %s", err, out)
	}
}
