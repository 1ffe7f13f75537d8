// SPDX-License-Identifier: Apache-2.0

// Command render makes the plain manifests out of the Helm chart, which is the
// one source: tandem.yaml, for kubectl apply, and the resources of a kustomize
// base. Its test checks that they are the same, and the chart itself. For a
// release it makes them of that version, and the chart's archive:
//
//	go run . -version v1.2.3 -out ../../../dist/kubernetes
//
// Without Helm it prints what `helm template` would, with values as
// --set has them:
//
//	go run . -print image.tag=v1.2.3 linux.iptables=true
//
// It is a module of its own, so that nothing of Helm and kustomize gets into the
// product's.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	v2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
)

// namespace is that of the plain manifests: where kube-proxy is.
const namespace = "kube-system"

func main() {
	version := flag.String("version", "", "make the files of a release of this version")
	out := flag.String("out", ".", "the folder for them")
	show := flag.Bool("print", false, "print the manifests with the values of the arguments, such as image.tag=v1")
	flag.Parse()
	do := func() error { return write("..") }
	switch {
	case *show:
		do = func() error { return template("../chart", flag.Args(), os.Stdout) }
	case *version != "":
		do = func() error { return release("../chart", strings.TrimPrefix(*version, "v"), *out) }
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

// template writes the manifests of a chart with values that settings change.
func template(dir string, settings []string, out io.Writer) error {
	chart, err := loader.LoadDir(dir)
	if err != nil {
		return err
	}
	values := map[string]any{}
	for _, s := range settings {
		if err := strvals.ParseInto(s, values); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	files, err := render(chart, values)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, err := fmt.Fprintf(out, "---\n%s", files[name]); err != nil {
			return err
		}
	}
	return nil
}

// write writes all files that are generated from the chart to a folder.
func write(dir string) error {
	chart, err := loader.LoadDir(filepath.Join(dir, "chart"))
	if err != nil {
		return err
	}
	files, err := beside(chart)
	if err != nil {
		return err
	}
	return save(dir, files)
}

// save writes files into a folder.
func save(dir string, files map[string][]byte) error {
	for name, text := range files {
		to := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// note is at the top of each generated file.
const note = "# Generated from the Helm chart by installers/kubernetes/render; do not edit.\n"

// beside returns the files next to the chart: those for users, and those
// for tests.
func beside(chart *v2.Chart) (map[string][]byte, error) {
	files, err := plain(chart)
	if err != nil {
		return nil, err
	}
	rendered, err := render(chart, own())
	if err != nil {
		return nil, err
	}
	files["testdata/own.yaml"] = []byte(note + "---\n" + strings.Join(sorted(rendered), "---\n"))
	return files, nil
}

// plain returns the files that are generated from a chart with its default values.
func plain(chart *v2.Chart) (map[string][]byte, error) {
	rendered, err := render(chart, nil)
	if err != nil {
		return nil, err
	}
	all := bytes.NewBufferString(note)
	base := bytes.NewBufferString(note + "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n")
	files := map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		files["kustomize/"+name] = []byte(note + rendered[name])
		fmt.Fprintf(base, "  - %s\n", name)
		all.WriteString("---\n" + rendered[name])
	}
	files["kustomize/kustomization.yaml"], files["tandem.yaml"] = base.Bytes(), all.Bytes()
	return files, nil
}

// sorted returns the files in the order of their names.
func sorted(files map[string]string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		all = append(all, files[name])
	}
	return all
}

// own are values that use what the default values do not: for tests with a real
// API server.
func own() map[string]any {
	return map[string]any{
		"config":     map[string]any{"existing": "", "apiServer": "https://192.0.2.10:6443", "settings": map[string]any{"mode": "nftables"}},
		"kubectl":    map[string]any{"enabled": true},
		"podMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
		"linux":      map[string]any{"iptables": true, "extraArgs": []any{"--log-level=debug"}},
		"image":      map[string]any{"repository": "registry.example/tandem", "tag": "v1", "pullSecrets": []any{map[string]any{"name": "pull"}}},
	}
}

// newest is the version that the manifests are for; they are for older ones, too.
const newest = "v1.37.2"

// texts returns what all templates of a chart become without a cluster, by their paths.
func texts(chart *v2.Chart, values map[string]any) (map[string]string, error) {
	all, err := given(chart, values)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, all)
}

// given is what templates are rendered with: the values of a chart, its release, and the newest cluster.
func given(chart *v2.Chart, values map[string]any) (common.Values, error) {
	// The plain manifests are not Helm's to manage.
	cluster := common.DefaultCapabilities.Copy()
	cluster.KubeVersion.Version = newest
	release := common.ReleaseOptions{Name: "tandem", Namespace: namespace, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, release, cluster)
	if err != nil {
		return nil, err
	}
	all["Release"].(map[string]any)["Service"] = "kubectl"
	return all, nil
}

// render returns the manifests that the templates of a chart become, by the file's
// name. Those that become nothing are left out.
func render(chart *v2.Chart, values map[string]any) (map[string]string, error) {
	all, err := texts(chart, values)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, text := range all {
		if text = trimDocuments(text); text != "" && path.Ext(name) == ".yaml" {
			files[path.Base(name)] = text
		}
	}
	return files, nil
}

// trimDocuments removes empty documents, and the blank that templates leave behind.
func trimDocuments(text string) string {
	var docs []string
	for doc := range strings.SplitSeq("\n"+strings.TrimSpace(text), "\n---\n") {
		if doc = strings.TrimSpace(doc); doc != "" {
			docs = append(docs, doc)
		}
	}
	if len(docs) == 0 {
		return ""
	}
	return strings.Join(docs, "\n---\n") + "\n"
}
