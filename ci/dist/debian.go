// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/blakesmith/ar"
	"github.com/ulikunitz/xz"
)

// wanted are the files of Debian's packages that the image with iptables needs:
// programs, extensions, the libraries they load, and their licences.
var wanted = regexp.MustCompile(`^(usr/s?bin/(xtables-(nft|legacy)-multi|ip6?tables[^/]*)` +
	`|usr/lib/[^/]+/xtables/lib(xt|ipt|ip6t)_[^/]+\.so` +
	`|usr/lib/[^/]+/lib(ip4tc|ip6tc|xtables|nftnl|mnl|nfnetlink|netfilter_conntrack)\.so[^/]*` +
	`|(usr/)?lib(64)?(/[^/]+)?/(ld-linux-[^/]+|lib(c|m|dl|pthread)\.so\.[0-9]+)` +
	`|usr/share/doc/[^/]+/copyright)$`)

// names are what programs call iptables. On a system Debian's alternatives would
// make these links; the nft variant is the default there, too.
var names = []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"}

// debian returns the files of the pinned packages that an image needs.
func (r release) debian(ctx context.Context, t target) ([]file, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(r.root, "ci", "dist", "debs"), t.arch)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("packages of Debian for %s: %w", t, err)
	}
	debs, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "*.deb"))
	if err != nil {
		return nil, err
	}
	var files []file
	for _, deb := range debs {
		some, err := unpack(deb)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(deb), err)
		}
		files = append(files, some...)
	}
	for _, name := range names {
		files = append(files, file{name: "usr/sbin/" + name, link: "xtables-nft-multi"})
	}
	return files, nil
}

// unpack returns the wanted files of a package: deb(5).
func unpack(deb string) ([]file, error) {
	b, err := os.ReadFile(deb)
	if err != nil {
		return nil, err
	}
	members := ar.NewReader(bytes.NewReader(b))
	for {
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("no data.tar.xz in it")
		}
		if err != nil {
			return nil, err
		}
		if strings.TrimSuffix(h.Name, "/") != "data.tar.xz" {
			continue
		}
		plain, err := xz.NewReader(members)
		if err != nil {
			return nil, err
		}
		return pick(tar.NewReader(plain))
	}
}

// pick returns the wanted files of an archive.
func pick(in *tar.Reader) (files []file, err error) {
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		f := file{name: strings.TrimPrefix(path.Clean(h.Name), "/"), mode: h.FileInfo().Mode(), link: h.Linkname}
		if !wanted.MatchString(f.name) || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink {
			continue
		}
		if f.content, err = io.ReadAll(in); err != nil {
			return nil, err
		}
		files = append(files, f)
	}
}
