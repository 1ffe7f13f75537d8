// SPDX-License-Identifier: Apache-2.0

// Command dist builds what users install, from a clean checkout into one folder,
// and the same bit for bit every time:
//
//	go build ──▶ bin/tandem-OS-ARCH ─┬─▶ packages/   deb, rpm, apk        (installers/packages, nfpm)
//	tandem packaging ──▶ man, ───────┘
//	                completion, unit, config
//	             bin/tandem-OS-ARCH ─┬─▶ images/     OCI layouts and tars (installers/images, go-containerregistry)
//	                                 ├─▶ windows/    MSI and zip          (installers/windows/dist)
//	installers/kubernetes/chart ─────┼─▶ kubernetes/ chart, also as an OCI layout, plain YAML, kustomize base (installers/kubernetes/dist)
//	MSI and zip ─────────────────────┼─▶ managers/   winget, Scoop, Homebrew (installers/managers)
//	all of that ─────────────────────┼─▶ sbom/       SPDX, one for each program: its modules, and what it is delivered in
//	                                 ├─▶ provenance.intoto.json  SLSA: of which commit all files are
//	                                 └─▶ SHA256SUMS  over all files
//
//	-sign: all of it ──▶ signed packages, packages/ as a repository of apt and dnf,
//	                     cosign's signatures of images and chart, SHA256SUMS.sig
//
// Each executable installers/*/dist is run with the folder to fill and the
// version; a new installer is one more of them.
//
// Times in the artifacts are SOURCE_DATE_EPOCH, by default the time of the
// commit, or none; paths of the machine that built them do not get in. It is a
// module of its own: what builds packages is no dependency of the product.
package main
