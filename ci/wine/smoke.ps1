# SPDX-License-Identifier: Apache-2.0
# A smoke test for a real Windows node; run it as administrator on a node that is
# drained, with kube-proxy stopped:
#
#   .\smoke.ps1 -Tandem .\tandem.exe -Network cbr0 -Remote 10.244.2.2 -RemotePort 80
#
# It programs one Service of 10.96.255.254 that leads to an endpoint that answers
# HTTP, asks it, restarts the proxy, asks again while HNS itself restarts, and
# cleans up. Each line it prints says what held; it ends with an error otherwise.
param(
  [string]$Tandem = ".\tandem.exe",
  [Parameter(Mandatory)][string]$Network,
  [Parameter(Mandatory)][string]$Remote,
  [int]$RemotePort = 80,
  [string]$Vip = "10.96.255.254"
)
$ErrorActionPreference = "Stop"
$dir = New-Item -ItemType Directory (Join-Path $env:TEMP ("tandem-smoke-" + [guid]::NewGuid()))
$env:KUBE_NETWORK = $Network
@"
apiVersion: v1
kind: Service
metadata: {name: smoke, namespace: default}
spec: {type: ClusterIP, clusterIP: $Vip, clusterIPs: [$Vip], ports: [{name: p, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: smoke-a, namespace: default, labels: {kubernetes.io/service-name: smoke}}
addressType: IPv4
ports: [{name: p, port: $RemotePort}]
endpoints: [{addresses: [$Remote], nodeName: another, conditions: {ready: true}}]
"@ | Set-Content (Join-Path $dir "smoke.yaml")

function Start-Proxy { Start-Process $Tandem -PassThru -NoNewWindow -ArgumentList "run", "--manifests", $dir, "--proxy-mode", "kernelspace" }
function Balancers { (Get-HnsPolicyList | Where-Object { $_.Policies.VIPs -contains $Vip } | ForEach-Object ID) }
function Expect($what, [scriptblock]$holds) {
  foreach ($i in 1..60) { if (& $holds) { "ok: $what"; return }; Start-Sleep 1 }
  throw "failed: $what"
}
$answers = { try { (Invoke-WebRequest -UseBasicParsing -TimeoutSec 2 "http://$Vip/").StatusCode -gt 0 } catch { $null -ne $_.Exception.Response } }
$before = @(Get-HnsPolicyList).Count
$proxy = Start-Proxy
try {
  Expect "one load balancer for $Vip" { @(Balancers).Count -eq 1 }
  Expect "$Vip answers" $answers
  $id = Balancers
  Stop-Process $proxy; $proxy = Start-Proxy; Start-Sleep 10
  Expect "a restart of the proxy leaves the load balancer alone" { (Balancers) -eq $id }
  Restart-Service hns -Force
  Expect "after a restart of HNS there is one again" { @(Balancers).Count -eq 1 }
  Expect "$Vip answers" $answers
} finally {
  Stop-Process $proxy -ErrorAction SilentlyContinue
  & $Tandem cleanup --proxy-mode kernelspace
  Remove-Item -Recurse $dir
}
Expect "cleanup leaves everybody else's" { @(Get-HnsPolicyList).Count -eq $before }
