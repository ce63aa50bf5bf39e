"""The trunks that Kunlun is compared with: Wukong, InterFormer, DCNv2, DIN (docs/baselines.md)."""
