// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// repository is where the manifests look for images (chart/values.yaml).
const repository = "ghcr.io/tandem-proxy/tandem"

// images builds the images: one of the program alone, one with iptables added to
// it.
func (r release) images(ctx context.Context) error {
	alone, tools := indexes(), indexes()
	for _, t := range r.targets {
		if !t.image() {
			continue
		}
		program, err := os.ReadFile(r.program(t))
		if err != nil {
			return err
		}
		legal, err := os.ReadFile(r.copyright())
		if err != nil {
			return err
		}
		layer, err := r.layer(t, programFiles(t, program, legal))
		if err != nil {
			return err
		}
		if alone, err = r.add(alone, t, layer); err != nil {
			return err
		}
		if t.os != "linux" {
			continue
		}
		files, err := r.debian(ctx, t)
		if err != nil {
			return err
		}
		base, err := r.layer(t, files)
		if err != nil {
			return err
		}
		if tools, err = r.add(tools, t, base, layer); err != nil {
			return err
		}
	}
	if err := r.save("tandem", r.tag(), alone); err != nil {
		return err
	}
	return r.save("tandem-iptables", r.tag()+"-iptables", tools)
}

// tag is the version as images have it, where a plus sign is not allowed; the
// chart makes it in the same way.
func (r release) tag() string { return strings.ReplaceAll(r.version, "+", "_") }

func indexes() v1.ImageIndex { return mutate.IndexMediaType(empty.Index, types.OCIImageIndex) }

// Where the program is in an image. It answers to kube-proxy's name and place as
// well, so that a DaemonSet of kube-proxy's needs no more than another image.
const (
	linuxProgram   = "usr/local/bin/tandem"
	linuxLink      = "usr/local/bin/kube-proxy"
	windowsProgram = "tandem.exe"
)

func programFiles(t target, program, legal []byte) []file {
	if t.os == "windows" {
		return []file{{name: windowsProgram, mode: 0o755, content: program}, {name: "LICENSE.txt", mode: 0o644, content: legal}}
	}
	return []file{
		{name: "usr/share/doc/tandem/copyright", mode: 0o644, content: legal},
		{name: linuxProgram, mode: 0o755, content: program},
		{name: linuxLink, link: "tandem"},
	}
}

// add adds the image for a target to an index.
//
// No Windows image names an os.version: a HostProcess container has no files of
// a system, so that one image is right for every build of Windows. containerd
// compares the version of an entry with the node's only where there is one, since
// 1.7 (containerd#8101, platforms' windowsVersionMatcher); an entry with the
// version of Windows Server 2022 would leave 2019 without an image.
func (r release) add(index v1.ImageIndex, t target, layers ...v1.Layer) (v1.ImageIndex, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	var history []mutate.Addendum
	for _, l := range layers {
		history = append(history, mutate.Addendum{Layer: l, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: r.when}, CreatedBy: "tandem ci/dist"}})
	}
	image, err := mutate.Append(image, history...)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = t.os, t.arch, v1.Time{Time: r.when}
	config.Config.Entrypoint = []string{"/" + linuxProgram}
	config.Config.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if t.os == "windows" {
		config.Config.Entrypoint, config.Config.Env = []string{windowsProgram}, nil
	}
	config.Config.Labels = r.labels()
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.AppendManifests(index, mutate.IndexAddendum{
		Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: t.os, Architecture: t.arch}},
	}), nil
}

func (r release) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    "tandem",
		"org.opencontainers.image.version":  r.version,
		"org.opencontainers.image.revision": r.commit,
		"org.opencontainers.image.source":   "https://github.com/tandem-proxy/tandem",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
}

// save writes an index as an OCI layout, and that as a tar file, which containerd
// imports under the name that the manifests use.
func (r release) save(name, tag string, index v1.ImageIndex) error {
	dir := filepath.Join(r.out, "images", name)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	annotations := map[string]string{
		"org.opencontainers.image.ref.name": tag,
		"io.containerd.image.name":          repository + ":" + tag,
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(annotations)); err != nil {
		return fmt.Errorf("layout %s: %w", name, err)
	}
	return r.archive(dir, dir+".tar")
}
