// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// ErrMixed means that there are rules of both variants.
var ErrMixed = errors.New("this host has rules of both iptables variants")

// Choose returns, of the installed variants, the one that this host already uses or,
// if it uses none, all. Rules of both are an error: packets would traverse both, and
// it is unknown to which one other programs will write.
func Choose(ctx context.Context, found []Tools) ([]Tools, error) {
	uses := map[Variant]string{}
	for _, t := range found {
		for _, f := range t.Installed() {
			out, err := t.SaveAll(ctx, f)
			switch {
			case err == nil:
			case ctx.Err() != nil, t.mayHaveLegacyTables(f), errors.Is(err, ErrIncompatible):
				return nil, fmt.Errorf("iptables: detecting the variant in use failed: %w", err)
			default:
				continue // the kernel lacks it; the probe finds out whether it works
			}
			if rules := count(out); rules > 0 && uses[t.Variant] == "" {
				uses[t.Variant] = fmt.Sprintf("%d rules and chains (%s)", rules, t.Paths[f].Save)
			}
			if !installed(found, Legacy) && strings.Contains(out, legacyWarning) && legacyRules(f) > 0 {
				uses[Legacy] = "rules, which no command that is installed can list"
			}
		}
	}
	return pickVariant(found, uses)
}

// legacyWarning is part of the warning of iptables-nft about legacy tables.
const legacyWarning = "iptables-legacy tables present"

func installed(found []Tools, v Variant) bool {
	return slices.ContainsFunc(found, func(t Tools) bool { return t.Variant == v })
}

// legacyRules asks the kernel how many rules and chains its legacy tables filter and nat
// have besides the built-in ones; 0 if that is unknown. It asks about those that exist: the
// kernel makes any other that it is asked about.
func legacyRules(f model.Family) (n int) {
	there, err := legacyTables(f)
	if err != nil || len(there) == 0 {
		return 0
	}
	sock, err := infoSocket(f)
	if err != nil {
		return 0
	}
	defer unix.Close(sock)
	own := [...]int{Filter: 3 + 1, NAT: 4 + 1} // policies of the chains, and the end
	for _, t := range []Table{Filter, NAT} {
		if !slices.Contains(there, t.String()) {
			continue
		}
		if i, err := readTableInfo(sock, f, t.String()); err == nil {
			n += int(i.entries) - own[t]
		}
	}
	return n
}

// count counts the rules and the chains other than the kernel's.
func count(save string) (n int) {
	for l := range strings.Lines(save) {
		if strings.HasPrefix(l, "-A ") || strings.HasPrefix(l, ":") && strings.Contains(l, " - ") {
			n++
		}
	}
	return n
}

// pickVariant chooses by what each variant holds.
func pickVariant(found []Tools, uses map[Variant]string) ([]Tools, error) {
	if uses[Legacy] != "" && uses[NFT] != "" {
		return nil, fmt.Errorf("iptables: %w: legacy (iptables-legacy): %s; nft (iptables-nft): %s. "+
			"Packets would meet both. Bring all into one: let everything that writes rules use the same variant "+
			"(update-alternatives --config iptables), then remove the rules of the other, or restart the machine", ErrMixed, uses[Legacy], uses[NFT])
	}
	for _, t := range found {
		if uses[t.Variant] != "" {
			return []Tools{t}, nil
		}
	}
	for v, what := range uses {
		if what != "" {
			return nil, fmt.Errorf("iptables: this host uses the %s variant: %s. Install its iptables-restore", v, what)
		}
	}
	return found, nil
}
