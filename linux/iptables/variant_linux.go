package iptables

import (
	"context"
	"fmt"
	"strings"
)

// choose returns the commands of the variant that this host already uses, in
// the order in which they should be tried where it uses none. Rules of both are
// an error: packets would meet both, and nobody could tell which of them the
// others on this host will write next.
func choose(ctx context.Context) ([]tools, error) {
	found, err := findTools(ctx)
	if err != nil {
		return nil, err
	}
	uses := map[Variant]string{}
	for _, t := range found {
		for _, f := range t.families() {
			out, err := run(ctx, nil, t.family[f].save)
			if err != nil {
				continue // it holds nothing that can be read; whether it works the probe tells
			}
			if rules := count(string(out)); rules > 0 && uses[t.variant] == "" {
				uses[t.variant] = fmt.Sprintf("%d rules and chains (%s)", rules, t.family[f].save)
			}
			if t.variant == NFT && uses[Legacy] == "" && strings.Contains(string(out), legacyHint) {
				uses[Legacy] = "tables, which no command that is installed can list"
			}
		}
	}
	return decide(found, uses)
}

// legacyHint is part of what iptables-nft says when it sees legacy tables.
const legacyHint = "iptables-legacy tables present"

// count counts the rules and the chains other than the kernel's.
func count(save string) (n int) {
	for l := range strings.Lines(save) {
		if strings.HasPrefix(l, "-A ") || strings.HasPrefix(l, ":") && strings.Contains(l, " - ") {
			n++
		}
	}
	return n
}

// decide is the choice, given what each variant holds.
func decide(found []tools, uses map[Variant]string) ([]tools, error) {
	if uses[Legacy] != "" && uses[NFT] != "" {
		return nil, fmt.Errorf("iptables: this host has rules of both variants, legacy (iptables-legacy): %s, and nft (iptables-nft): %s. "+
			"Packets would meet both. Bring all rules into one: let everything that writes rules use the same variant "+
			"(update-alternatives --config iptables), and remove the rules of the other, or restart the machine", uses[Legacy], uses[NFT])
	}
	for _, t := range found {
		if uses[t.variant] != "" {
			return []tools{t}, nil
		}
	}
	for v, what := range uses {
		if what != "" {
			return nil, fmt.Errorf("iptables: this host uses the %s variant: %s. Install its iptables-restore", v, what)
		}
	}
	return found, nil
}
