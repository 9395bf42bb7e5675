"""The scoring service: RankAds, the ads cache, the auction, clicks and live ads."""
