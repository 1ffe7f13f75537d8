class Tandem < Formula
  desc "Kubernetes Service proxy; plan, explain and replay run on any system"
  homepage "{{.Home}}"
  url "{{.Home}}.git", tag: "v{{.Version}}", revision: "{{.Commit}}"
  license "Apache-2.0"

  depends_on "go" => :build

  def install
    ENV["CGO_ENABLED"] = "0"
    system "go", "build", *std_go_args(ldflags: "-s -w -X main.version=v#{version}"), "./cmd/tandem"
    bin.install_symlink "tandem" => "kubectl-tandem"
    generate_completions_from_executable(bin/"tandem", "completion")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/tandem version")
  end
end
