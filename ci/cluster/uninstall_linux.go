// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// uninstall takes Tandem off the cluster that runs, as the guide has it, and says what each node's kernel has of it
// before, between and after. There is no Service proxy then.
func (c *cluster) uninstall(ctx context.Context) error {
	if err := c.findParts(ctx, "where"); err != nil {
		return err
	}
	settings := c.askable() // what the questions have installed, too
	cleaning := append(slices.Clone(settings), "cleanup=true")
	before, err := c.ownRules(ctx)
	if err != nil {
		return err
	}
	for _, s := range []struct {
		what string
		do   func() error
	}{
		{"helm uninstall", func() error { return c.chart(ctx, "delete", settings) }},
		{"helm install with cleanup=true", func() error { return c.chart(ctx, "apply", cleaning) }},
		{"each pod is ready", func() error { return c.rolledOut(ctx, "kube-system", "daemonset/tandem") }},
		{"helm uninstall again", func() error { return c.chart(ctx, "delete", cleaning) }},
	} {
		if err := c.step(s.what, s.do); err != nil {
			return err
		}
	}
	after, err := c.ownRules(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range c.plan.Workers {
		fmt.Fprintf(c.out, "cluster: %s had %d lines of Tandem's, and has %d\n", n.Name, len(before[n.Name].own), len(after[n.Name].own))
		errs = append(errs, cleaned(before[n.Name], after[n.Name]))
	}
	return errors.Join(errs...)
}

// cleaned returns what is wrong with the rules that a clean-up left.
func cleaned(before, after rules) error {
	switch {
	case len(before.own) == 0:
		return errors.New("there was nothing of Tandem's before")
	case len(after.own) > 0:
		return fmt.Errorf("left: %s", strings.Join(after.own, "; "))
	case before.others != after.others:
		return fmt.Errorf("rules of others were\n%s\nand are\n%s", before.others, after.others)
	}
	return nil
}

// ownRules reads the rules of each node.
func (c *cluster) ownRules(ctx context.Context) (map[string]rules, error) {
	all := map[string]rules{}
	for _, n := range c.plan.Workers {
		cmd, err := c.in(ctx, n.Name, "nft", "--stateless", "list", "ruleset")
		if err != nil {
			return nil, err
		}
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: nft: %w", n.Name, err)
		}
		all[n.Name] = parseRules(string(out))
	}
	return all, nil
}

// rules are those of a node: lines of Tandem's tables and of the chains that it shares with kube-proxy, and the
// text of the others' tables.
type rules struct {
	own    []string
	others string
}

// sharedChain is a chain of kube-proxy's names, or a jump to one. Kubelet has KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT
// and KUBE-FIREWALL.
var sharedChain = regexp.MustCompile(`KUBE-(SERVICES|NODEPORTS|POSTROUTING|MARK-MASQ|FORWARD|PROXY-FIREWALL|EXTERNAL-SERVICES|SVC-|SVL-|SEP-|EXT-|FW-|NODEPORT-|PORTALS-)`)

func parseRules(text string) (r rules) {
	ours := false
	var others strings.Builder
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "table" {
			ours = fields[2] == tandem || strings.HasPrefix(fields[2], tandem+"-")
		}
		if ours || sharedChain.MatchString(line) {
			r.own = append(r.own, strings.TrimSpace(line))
		} else {
			others.WriteString(line)
		}
	}
	r.others = others.String()
	return r
}
